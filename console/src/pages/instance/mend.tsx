// What helps an instance that stands where it should not (docs/mending.md): skip a step, move on from another one, go on in
// another version. The engine checks each and says why it can't be; nothing has changed then.
import { keepPreviousData, useQueries, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { type Definition, engine, type InstanceState, type Step } from "../../api/client";
import { Dialog, NoteField, VariablesField, variablesOf } from "../../parts/dialog";
import { Problem, Skeleton } from "../../parts/states";
import { ruleOf, TIMER_RULES, type TimerRule, TimerRuleField } from "../timerrule";

const WAYS = { skip: "Skip a step", move: "Move it", migrate: "To another version" } as const;
export type Way = keyof typeof WAYS;
const VERBS: Record<Way, string> = { skip: "Skip the step", move: "Move it", migrate: "Migrate" };
const SKIPPABLE = new Set<string>(["SERVICE_TASK", "USER_TASK", "WAIT", "CALL_ACTIVITY", "TRANSFORMATION"]);

interface Props {
  state: InstanceState;
  definition: Definition;
  close: () => void;
  done: () => Promise<void>;
}

export function MendDialog({ state, definition, close, done }: Props) {
  const [way, setWay] = useState(() => firstWayOf(state, definition));
  const [target, setTarget] = useState<Target>();
  const { id } = state.instance;
  const act = async (form: FormData) => {
    const text = (name: string) => String(form.get(name) ?? "").trim();
    const from = placeOf(text("place"));
    if (way === "skip") await engine.skip(id, { ...from, variables: variablesOf(text("variables")), note: text("note") });
    else if (way === "move") await engine.move(id, { ...from, toStepId: text("to"), note: text("note") });
    else await engine.migrate(id, { ...target!, note: text("note") });
    await done();
  };
  return (
    <Dialog title="Repair this instance" verb={VERBS[way]} danger={way !== "migrate"} ready={way !== "migrate" || target !== undefined} close={close} act={act}>
      <div className="seg ways" role="group" aria-label="How">
        {Object.entries(WAYS).map(([one, word]) => (
          <button key={one} type="button" aria-pressed={way === one} onClick={() => setWay(one as Way)}>
            {word}
          </button>
        ))}
      </div>
      {way === "skip" && (
        <>
          <p>The step counts as done, with what you give as its result. Whoever has its job loses it.</p>
          <PlaceField key="skip" places={placesOf(state, definition, "skip")} />
          <VariablesField />
        </>
      )}
      {way === "move" && (
        <>
          <p>What stands on a step goes on at another one, with all retries and new timers. The variables stay as they are.</p>
          <PlaceField key="move" places={placesOf(state, definition, "move")} chosen={false} />
          <div className="field">
            <label htmlFor="to">To</label>
            <select id="to" name="to" className="in" required>
              <option value="">Choose one</option>
              <Steps of={definition} />
            </select>
          </div>
        </>
      )}
      {way === "migrate" && <VersionFields state={state} definition={definition} choose={setTarget} />}
      <NoteField />
    </Dialog>
  );
}

/** Where something stands: a step, and of several executions of it which one. */
interface Place {
  stepId: string;
  executionId?: string;
  text: string;
  /** Something is open there, or it is the step that failed: what is meant, if nothing else is said. */
  stands: boolean;
}

function placeOf(value: string): { stepId: string; executionId?: string } {
  const [stepId, executionId] = JSON.parse(value || '[""]') as [string, string?];
  return { stepId, ...(executionId !== undefined && { executionId }) };
}

/** Skipping, unless the step that failed has no result: that one is moved. */
export function firstWayOf(state: InstanceState, definition: Definition): Way {
  const failed = state.instance.status === "FAILED" && definition.steps.find((step) => step.id === state.why.stepId);
  return failed && !SKIPPABLE.has(failed.type) ? "move" : "skip";
}

/** What is open; of a failed instance all steps, that which failed first: the engine knows which ones the failure closed. */
export function placesOf(state: InstanceState, definition: Definition, way: Way): Place[] {
  const fits = (step: Step | undefined) => way !== "skip" || step === undefined || SKIPPABLE.has(step.type);
  const byId = new Map(definition.steps.map((step) => [step.id, step]));
  const nameOf = (id: string) => byId.get(id)?.name || id;
  const open = state.tokens.map((token) => ({ stepId: token.stepId, executionId: token.id, text: `${nameOf(token.stepId)}, ${token.text}`, stands: true }));
  const seen = new Set(open.map((place) => place.stepId));
  const failed = state.instance.status === "FAILED";
  const first = state.why.stepId;
  // A gateway with its branches and a forEach with its items stand on no execution of their own.
  const others = definition.steps.filter((step) => !seen.has(step.id) && (failed || step.type === "PARALLEL_GATEWAY" || step.forEach !== undefined));
  const whole = others
    .sort((a, b) => Number(b.id === first) - Number(a.id === first))
    .map((step) => ({ stepId: step.id, text: `${nameOf(step.id)}${step.id === first ? ", failed" : step.type === "PARALLEL_GATEWAY" ? ", with its branches" : ""}`, stands: step.id === first }));
  return [...open, ...whole].filter((place) => fits(byId.get(place.stepId)));
}

/** `chosen`: where something stands is meant, if nothing else is said. */
function PlaceField({ places, chosen = true }: { places: Place[]; chosen?: boolean }) {
  return (
    <div className="field">
      <label htmlFor="place">Step</label>
      <select id="place" name="place" className="in" required>
        {!(chosen && places[0]?.stands === true) && <option value="">Choose one</option>}
        {places.map((place) => (
          <option key={`${place.stepId} ${place.executionId}`} value={JSON.stringify([place.stepId, place.executionId])}>
            {place.text}
          </option>
        ))}
      </select>
    </div>
  );
}

export function Steps({ of }: { of: Definition }) {
  return of.steps.map((step) => (
    <option key={step.id} value={step.id}>
      {step.name || step.id}
    </option>
  ));
}

/** A version in which the instance can go on, with the steps that are called otherwise there. */
interface Target {
  version: number;
  steps: Record<string, string>;
  timers?: TimerRule;
}

function VersionFields({ state, definition, choose }: { state: InstanceState; definition: Definition; choose: (target: Target | undefined) => void }) {
  const { definitionId, definitionVersion } = state.instance;
  const versions = useQuery({ queryKey: ["versions", definitionId, "choose"], queryFn: ({ signal }) => engine.versions(definitionId, "", signal) });
  const others = versions.data?.items.map((item) => item.version).filter((version) => version !== definitionVersion) ?? [];
  const [chosen, setChosen] = useState<number>();
  const version = chosen ?? others[0];
  const other = useQuery({
    queryKey: ["definition", definitionId, version],
    queryFn: ({ signal }) => engine.definition(definitionId, version, signal),
    enabled: version !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
  });
  if (versions.error) return <Problem error={versions.error} retry={() => versions.refetch()} />;
  if (!versions.data) return <Skeleton rows={2} />;
  if (version === undefined) return <p>There is no other version of {definitionId}.</p>;
  return (
    <>
      <p>It stays on its steps; what comes after them is that of the other version. Nothing is migrated before you say so.</p>
      <div className="field">
        <label htmlFor="version">From version {definitionVersion} to</label>
        <select id="version" className="in" value={version} onChange={(event) => setChosen(Number(event.currentTarget.value))}>
          {others.map((one) => (
            <option key={one} value={one}>
              version {one}
            </option>
          ))}
        </select>
      </div>
      {other.data && <Mapping key={version} state={state} definition={definition} target={other.data} version={version} choose={choose} />}
    </>
  );
}

/** Which step becomes which, and whether the instance can go on so: asked again with each choice. */
function Mapping({ state, definition, target, version, choose }: { state: InstanceState; definition: Definition; target: Definition; version: number; choose: (target: Target | undefined) => void }) {
  const { id } = state.instance;
  const [steps, setSteps] = useState<Record<string, string>>({});
  const [rule, setRule] = useState<TimerRule>("FROM_ENTRY");
  const checks = useQueries({
    queries: TIMER_RULES.map((one) => ({
      queryKey: ["migration", id, version, steps, one],
      queryFn: ({ signal }: { signal: AbortSignal }) => engine.checkMigration(id, { version, steps, ...ruleOf(one) }, signal),
      enabled: one === rule || state.timers.length > 0,
      placeholderData: keepPreviousData,
      staleTime: 0,
      gcTime: 0,
      retry: false,
    })),
  });
  const check = checks[TIMER_RULES.indexOf(rule)]!;
  const due = Object.fromEntries(TIMER_RULES.map((one, at) => [one, checks[at]!.data?.possible ? checks[at]!.data.timersDue : undefined]));
  const possible = check.data?.possible === true && !check.isFetching && !check.error;
  useEffect(() => choose(possible ? { version, steps, ...ruleOf(rule) } : undefined), [possible, version, steps, rule, choose]);
  const known = new Set(target.steps.map((step) => step.id));
  const stands = new Set(state.tokens.map((token) => token.stepId));
  // Those on which it stands can be named; so can those that are gone, as signals may be kept for them.
  const named = definition.steps.filter((step) => stands.has(step.id) || !known.has(step.id));
  return (
    <>
      {named.map((step) => (
        <div className="field" key={step.id}>
          <label htmlFor={`becomes-${step.id}`}>{step.name || step.id} becomes</label>
          <select
            id={`becomes-${step.id}`}
            className="in"
            value={steps[step.id] ?? ""}
            onChange={(event) => {
              const { [step.id]: _, ...rest } = steps;
              setSteps(event.currentTarget.value ? { ...rest, [step.id]: event.currentTarget.value } : rest);
            }}
          >
            <option value="">{known.has(step.id) ? "the step of that name" : "none: it is not in that version"}</option>
            <Steps of={target} />
          </select>
        </div>
      ))}
      {state.timers.length > 0 && <TimerRuleField rule={rule} choose={setRule} due={due} />}
      {check.error ? (
        <Problem error={check.error} retry={() => check.refetch()} />
      ) : (
        check.data && (
          <div role="status" aria-busy={check.isFetching}>
            {check.data.possible ? (
              <p>
                <b>It can go on in version {check.data.toVersion}.</b>
              </p>
            ) : (
              <>
                <p>
                  <b>It can't go on in version {check.data.toVersion}:</b>
                </p>
                <ul className="reasons">
                  {check.data.reasons.map((reason) => (
                    <li key={reason}>{reason}</li>
                  ))}
                </ul>
              </>
            )}
          </div>
        )
      )}
    </>
  );
}
