// Try it: the draft as it runs by the engine's own rules, on a clock that only the moves here set. The page keeps the
// moves; the engine is asked for all of them each time, so a step back is one move fewer.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { type RefObject, useEffect, useMemo, useRef, useState } from "react";
import { engine, type SimulationView, type TriedMove } from "../api/client";
import { type StepState, wayOf } from "../graph/edges";
import { Picture } from "../graph/picture";
import { Problem, Skeleton } from "../parts/states";
import { type Draft, definitionOf } from "./draft";
import { child, type Node, parse } from "./json";
import { formOf } from "./people";
import type { Reached } from "./toend";
import type { Trial } from "./trial";
import { after, Open, Others, span, Timer, told } from "./trycards";
import { useVariables, VariablesText } from "./variables";

interface Props {
  draft: Draft;
  /** What the engine said of it is of this text. */
  checked: boolean;
  trial: Trial;
  change: (to: Trial) => void;
  /** What Ctrl Z does. */
  back: RefObject<(() => void) | undefined>;
  save: (text: string, name: string) => void;
  say: (text: string) => void;
}

const ENDED: Record<string, StepState["look"]> = { FAILED: "fail", CAUGHT: "fail", INTERRUPTED: "skip", SKIPPED: "skip" };
const WAITS = new Set(["PARKED", "CALLED"]);
export function TryIt({ draft, checked, trial, change, back, save, say }: Props) {
  const [selected, select] = useState<string>();
  const [unsaved, setUnsaved] = useState<string>();
  const heading = useRef<HTMLHeadingElement>(null);
  const answers = useRef(new Map<string, TriedMove | undefined>());
  const [isGoing, setGoing] = useState(false);
  const [reached, setReached] = useState<Reached & { from: readonly TriedMove[] }>();
  /** On the way to the end, until somebody goes elsewhere or changes the draft. */
  const going = useRef<{ stopped: boolean }>(undefined);
  const leave = () => {
    going.current = undefined;
    setGoing(false);
  };
  useEffect(() => leave, [trial, draft.text]);
  const found = useQuery({
    queryKey: ["simulation", draft.text, trial],
    queryFn: async ({ signal }) => answered(await engine.simulate(draft.text, trial, false, signal)),
    enabled: checked,
    placeholderData: keepPreviousData,
    gcTime: 0,
    retry: false,
  });
  const go = (moves: readonly TriedMove[], said: string) => {
    change({ ...trial, moves });
    say(said);
    heading.current?.focus();
  };
  const goBack = () => {
    if (going.current) {
      leave();
      say("Stopped");
    } else if (trial.moves.length) go(trial.moves.slice(0, -1), "One move back");
  };
  back.current = goBack;
  const backward = (
    <button type="button" className="btn sm" title="Ctrl Z" disabled={trial.moves.length === 0 && !isGoing} onClick={goBack}>
      Back
    </button>
  );
  const definition = useMemo(() => ({ ...definitionOf(draft), id: `tried ${draft.text}` }), [draft]);
  const view = found.data?.view;
  const deeds = found.data?.deeds ?? [];
  const drawn = useMemo(() => (view ? picture(view) : undefined), [view]);
  if (found.error)
    return (
      <div className="panel">
        <Problem error={found.error} retry={() => found.refetch()} />
        {backward}
        <Started trial={trial} change={change} />
      </div>
    );
  if (!view || !drawn || !found.data) return <Skeleton />;
  const names = new Map(definition.steps.map((step) => [step.id, step.name || step.id]));
  const nameOf = (id: string) => names.get(id) ?? id;
  const made = trial.moves.slice(0, view.made);
  // What is shown until the answer comes is of fewer moves: one made on it would take the place of the last.
  const act = (move: TriedMove) => {
    if (!found.isPlaceholderData) go([...made, move], told(move, nameOf));
  };
  const next = view.timers[0];
  const simulated = async (moves: readonly TriedMove[], whole = false) => JSON.parse(await engine.simulate(draft.text, { ...trial, moves }, whole)) as SimulationView;
  const toTheEnd = async () => {
    if (found.isPlaceholderData) return;
    const run = { stopped: false };
    going.current = run;
    setGoing(true);
    const trip = { view, moves: made, ask: simulated, answers: new Map(answers.current), nameOf, isOver: () => run.stopped || going.current !== run };
    const { moves, word } = await import("./toend").then((part) => part.toTheEnd(trip)).catch((error: Error): Reached => ({ moves: made, word: error.message }));
    if (going.current !== run) return;
    leave();
    const reached = moves.length > made.length ? moves : trial.moves;
    setReached({ moves: reached, word, from: trial.moves });
    go(reached, word);
  };
  return (
    <div className="halves tryit">
      <section aria-label="Picture" className="half">
        <Picture definition={definition} states={drawn.states} taken={drawn.taken} selected={selected} onSelect={select} />
      </section>
      <section className="half side" aria-label="Try it" aria-busy={found.isPlaceholderData}>
        <div className="panel" tabIndex={0} role="group" aria-label="What happens next">
          <p className="mute">Nothing is stored, no worker asked. It is now</p>
          <p className="clock" role="status">
            {after(view)} <span className={`tag ${view.status.toLowerCase()}`}>{view.status}</span>
          </p>
          <p className="acts">
            {backward}
            <button type="button" className="btn sm" disabled={!next} onClick={() => act({ do: "advance" })}>
              {next ? `To the next timer: ${span(next.fireAt, view.at)}` : "To the next timer"}
            </button>
            <button
              type="button"
              className="btn sm"
              disabled={!isGoing && view.tokens.length + view.timers.length === 0}
              onClick={() => {
                if (!isGoing) void toTheEnd();
                else if (going.current) going.current.stopped = true;
              }}
            >
              {isGoing ? "Stop" : "To the end"}
            </button>
            <button type="button" className="btn sm" disabled={trial.moves.length === 0} onClick={() => go([], "Started again")}>
              Start again
            </button>
            <button
              type="button"
              className="btn sm"
              onClick={async () => {
                try {
                  save((await simulated(made, true)).test ?? "", `test_${(draft.definition.id || "definition").replace(/\W+/g, "_")}.py`);
                  setUnsaved(undefined);
                } catch (error) {
                  setUnsaved((error as Error).message);
                }
              }}
            >
              Save as a test
            </button>
          </p>
          {reached?.moves === trial.moves && (
            <p>
              <span>{reached.word}</span>{" "}
              {reached.from !== reached.moves && (
                <button type="button" className="link" onClick={() => go(reached.from, "Taken back")}>
                  Take it all back
                </button>
              )}
            </p>
          )}
          {unsaved && (
            <p className="wrong" role="alert">
              Not saved: {unsaved}
            </p>
          )}
          {view.stopped && (
            <p className="wrong" role="alert">
              {view.stopped}. {trial.moves.length > view.made && "It stands as before. "}
              <button type="button" className="link" onClick={() => go(made, "Went on from there")}>
                Go on from there
              </button>
            </p>
          )}
          {view.failureReason && <p className="wrong">{view.failureReason}</p>}
          {view.nextWorkflow && <p>Now an instance of {view.nextWorkflow} would start.</p>}
          {view.deadEnd && <p className="wrong">Nothing is open, and no END was reached: the instance stays as it is.</p>}
          <h2 ref={heading} tabIndex={-1}>
            {view.can.length ? "What happens next?" : "It has ended"}
          </h2>
          {view.tokens.map((token) => (
            <Open
              key={`${token.id} ${token.stepId} ${trial.moves.length}`}
              token={token}
              type={draft.definition.steps.find((step) => step.id === token.stepId)?.type}
              form={formOf(draft, token.stepId)}
              name={nameOf(token.stepId)}
              can={view.can}
              act={act}
              answers={answers}
              choose={() => select(token.stepId)}
            />
          ))}
          {view.timers.map((timer) => (
            <Timer key={`${timer.tokenId} ${timer.index}`} timer={timer} at={view.at} nameOf={nameOf} act={act} />
          ))}
          <Others key={trial.moves.length} can={view.can} nameOf={nameOf} act={act} />
          <Variables {...found.data} nameOf={nameOf} />
          <Started trial={trial} change={change} />
          <h2>So far</h2>
          <ol className="sofar">
            {view.trace.map((one, at) => (
              <li key={`${at} ${one.at}`}>
                <b>{deeds[at] ? told(deeds[at], nameOf) : "Started"}</b> {one.at === view.startedAt ? "" : <span className="mute">{span(one.at, view.startedAt)} after the start</span>}
                {one.ended.map((end, place) => (
                  <div key={place} className="mute">
                    {nameOf(end.stepId)}: {end.status.toLowerCase()}
                    {end.reason ? `, ${end.reason}` : ""}
                  </div>
                ))}
                {one.entered.length > 0 && <div>{one.entered.map(nameOf).join(", ")}</div>}
              </li>
            ))}
          </ol>
        </div>
      </section>
    </div>
  );
}

interface Answered {
  view: SimulationView;
  /** Values as the engine wrote them: JavaScript's numbers could not keep all of their digits. */
  values: [name: string, text: string][];
  result: string | undefined;
  /** The move of each entry of the trace; none: the start. */
  deeds: (TriedMove | undefined)[];
}

function answered(text: string): Answered {
  const root = parse(text);
  const written = (node: Node) => text.slice(node.start, node.end);
  const result = child(root, "result");
  return {
    view: JSON.parse(text) as SimulationView,
    values: child(root, "variables")!.members!.map(({ key, value }) => [key, written(value)]),
    result: result && written(result),
    deeds: child(root, "trace")!.items!.map((entry) => {
      const move = child(entry, "move");
      const variables = child(move, "variables");
      return move && { ...(JSON.parse(written(move)) as TriedMove), ...(variables ? { variables: written(variables) } : {}) };
    }),
  };
}

function Variables({ view, values, result, nameOf }: Omit<Answered, "deeds"> & { nameOf: (id: string) => string }) {
  const by = new Map<string, string>();
  for (const one of view.trace) for (const { name, stepId } of one.changed) by.set(name, stepId);
  const last = new Set(view.trace.at(-1)?.changed.map((one) => one.name));
  return (
    <>
      <h2>Variables</h2>
      <dl className="values">
        {values.map(([name, value]) => (
          <div key={name} className={last.has(name) ? "fresh" : ""}>
            <dt>{name}</dt>
            <dd>
              <code>{value}</code> {by.has(name) && <span className="mute">from {nameOf(by.get(name)!)}</span>}
            </dd>
          </div>
        ))}
      </dl>
      {result !== undefined && (
        <p>
          Result <code>{result}</code>
        </p>
      )}
    </>
  );
}

/** With what it is started: another one starts it again. */
function Started({ trial, change }: { trial: Trial; change: (to: Trial) => void }) {
  const typed = useVariables(trial.variables);
  return (
    <details>
      <summary>Start with other variables</summary>
      <VariablesText label="Variables to start with" rows={5} typed={typed} />
      <p className="acts">
        <button type="button" className="btn sm" disabled={typed.refusal !== undefined} onClick={() => change({ ...trial, variables: typed.text, moves: [] })}>
          Start with these
        </button>
      </p>
    </details>
  );
}

function picture(view: SimulationView): { states: Map<string, StepState>; taken: Set<string> } {
  const states = new Map<string, StepState>();
  for (const { stepId, times, status } of view.steps) states.set(stepId, { look: ENDED[status] ?? "done", times });
  const entered = new Map<string, number>();
  for (const token of view.tokens) if (token.item === undefined) entered.set(token.stepId, (entered.get(token.stepId) ?? 0) + 1);
  for (const token of view.tokens) {
    const times = (view.steps.find((one) => one.stepId === token.stepId)?.times ?? 0) + (entered.get(token.stepId) ?? 0);
    states.set(token.stepId, { look: WAITS.has(token.state) ? "wait" : "run", times: Math.max(1, times) });
  }
  // The engine tells from where to where, not by which way.
  return { states, taken: new Set(view.path.flatMap((way) => [wayOf({ ...way, kind: "next" }), wayOf({ ...way, kind: "error" })])) };
}
