// Try it: the draft as it runs by the engine's own rules, on a clock that only the moves here set. The page keeps the
// moves; the engine is asked for all of them each time, so a step back is one move fewer.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo, useRef, useState } from "react";
import { engine, type Move, type SimulatedTimer, type SimulatedToken, type SimulationView } from "../api/client";
import type { StepState } from "../graph/edges";
import { Picture } from "../graph/picture";
import { Problem, Skeleton } from "../parts/states";
import { duration } from "../parts/time";
import { type Draft, definitionOf } from "./draft";
import { parse } from "./json";

export interface Trial {
  /** JSON text of what it is started with. */
  variables: string;
  startedAt: string;
  moves: readonly Move[];
}

export function begun(variables: string): Trial {
  return { variables, startedAt: new Date(Math.floor(Date.now() / 1000) * 1000).toISOString(), moves: [] };
}

interface Props {
  draft: Draft;
  /** What the engine said of it is of this text. */
  checked: boolean;
  trial: Trial;
  change: (to: Trial) => void;
  save: (text: string, name: string) => void;
  say: (text: string) => void;
}

const DONE: Record<string, StepState["look"]> = { COMPLETED: "done", COMPENSATED: "done", FAILED: "fail", CAUGHT: "fail", INTERRUPTED: "skip", SKIPPED: "skip" };
const WAITS = new Set(["PARKED", "CALLED"]);
const KIND: Record<string, string> = { SERVICE_TASK: "Job", USER_TASK: "User task", CALL_ACTIVITY: "Call", WAIT: "Wait" };
const DO: Record<string, string> = { complete: "Complete", fail: "Fail for good", cancel: "Is cancelled", signal: "Signal", message: "Message" };

export function TryIt({ draft, checked, trial, change, save, say }: Props) {
  const [selected, select] = useState<string>();
  const [unsaved, setUnsaved] = useState<string>();
  const heading = useRef<HTMLHeadingElement>(null);
  const found = useQuery({
    queryKey: ["simulation", draft.text, trial],
    queryFn: ({ signal }) => engine.simulate(draft.text, trial, false, signal),
    enabled: checked,
    placeholderData: keepPreviousData,
    gcTime: 0,
    retry: false,
  });
  const definition = useMemo(() => ({ ...definitionOf(draft), id: `tried ${draft.text}` }), [draft]);
  const view = found.data;
  const drawn = useMemo(() => (view ? picture(view) : undefined), [view]);
  if (found.error)
    return (
      <div className="panel">
        <Problem error={found.error} retry={() => found.refetch()} />
        {trial.moves.length > 0 && (
          <button type="button" className="btn sm" onClick={() => change({ ...trial, moves: trial.moves.slice(0, -1) })}>
            Back
          </button>
        )}
        <Started trial={trial} change={change} />
      </div>
    );
  if (!view || !drawn) return <Skeleton />;
  const names = new Map(definition.steps.map((step) => [step.id, step.name || step.id]));
  const nameOf = (id: string) => names.get(id) ?? id;
  const made = trial.moves.slice(0, view.made);
  const go = (moves: readonly Move[], said: string) => {
    change({ ...trial, moves });
    say(said);
    heading.current?.focus();
  };
  const act = (move: Move) => go([...made, move], told(move, nameOf));
  const next = view.timers[0];
  return (
    <div className="halves tryit">
      <section aria-label="Picture" className="half">
        <Picture definition={definition} states={drawn.states} taken={drawn.taken} selected={selected} onSelect={select} />
      </section>
      <section className="half side" aria-label="Try it" aria-busy={found.isPlaceholderData}>
        <div className="panel" tabIndex={0} role="group" aria-label="What happens next">
          <p className="mute">Nothing is stored and no worker is asked. It is now</p>
          <p className="clock" role="status">
            {after(view)} <span className={`tag ${view.status.toLowerCase()}`}>{view.status}</span>
          </p>
          <p className="acts">
            <button type="button" className="btn sm" title="Ctrl Z" disabled={trial.moves.length === 0} onClick={() => go(trial.moves.slice(0, -1), "One move back")}>
              Back
            </button>
            <button type="button" className="btn sm" disabled={!next} onClick={() => act({ do: "advance" })}>
              {next ? `To the next timer: ${span(next.fireAt, view.at)}` : "To the next timer"}
            </button>
            <button type="button" className="btn sm" disabled={trial.moves.length === 0} onClick={() => go([], "Started again")}>
              Start again
            </button>
            <button
              type="button"
              className="btn sm"
              onClick={async () => {
                try {
                  const whole = await engine.simulate(draft.text, { ...trial, moves: made }, true);
                  save(whole.test ?? "", `test_${(draft.definition.id || "definition").replace(/\W+/g, "_")}.py`);
                  setUnsaved(undefined);
                } catch (error) {
                  setUnsaved(error instanceof Error ? error.message : String(error));
                }
              }}
            >
              Save as a test
            </button>
          </p>
          {unsaved && (
            <p className="wrong" role="alert">
              Not saved: {unsaved}
            </p>
          )}
          {view.stopped && (
            <p className="wrong" role="alert">
              {view.stopped}. {trial.moves.length > view.made && "It stands where it was before. "}
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
            <Open key={`${token.id} ${token.stepId} ${trial.moves.length}`} token={token} type={draft.definition.steps.find((step) => step.id === token.stepId)?.type} name={nameOf(token.stepId)} can={view.can} act={act} choose={() => select(token.stepId)} />
          ))}
          {view.timers.map((timer) => (
            <Timer key={`${timer.tokenId} ${timer.index}`} timer={timer} at={view.at} nameOf={nameOf} act={act} />
          ))}
          <Others key={trial.moves.length} can={view.can} nameOf={nameOf} act={act} />
          <Variables view={view} nameOf={nameOf} />
          <Started trial={trial} change={change} />
          <h2>So far</h2>
          <ol className="sofar">
            {view.trace.map((one, at) => (
              <li key={`${at} ${one.at}`}>
                <b>{one.move ? told(one.move, nameOf) : "Started"}</b> {one.at === view.startedAt ? "" : <span className="mute">{span(one.at, view.startedAt)} after the start</span>}
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

interface OpenProps {
  token: SimulatedToken;
  type: string | undefined;
  name: string;
  can: readonly Move[];
  act: (move: Move) => void;
  choose: () => void;
}

function Open({ token, type, name, can, act, choose }: OpenProps) {
  const [variables, setVariables] = useState("{}");
  const [by, setBy] = useState("");
  const [code, setCode] = useState("");
  const own = can.filter((move) => move.tokenId === token.id && move.do !== "fire");
  if (token.items)
    return (
      <section className="card" aria-label={name}>
        <p>
          <span className="tag">For each</span> <b>{name}</b>
        </p>
        <p className="mute">
          {token.items.completed} of {token.items.total} completed, {token.items.failed} failed
        </p>
      </section>
    );
  const given = valuesOf(variables);
  const fails = own.some((move) => move.do === "fail");
  const label = token.item === undefined ? name : `${name}, item ${token.item}`;
  const make = (move: Move) =>
    act({
      ...move,
      ...(given && Object.keys(given).length && move.do !== "cancel" ? { variables: given } : {}),
      ...(move.do === "fail" && code ? { errorCode: code } : {}),
      ...(move.do === "complete" && by ? { by } : {}),
    });
  return (
    <section className="card" aria-label={label}>
      <p>
        <span className="tag">{KIND[type ?? ""] ?? "Job"}</span>{" "}
        <button type="button" className="link" onClick={choose}>
          {label}
        </button>{" "}
        {token.failures ? <span className="mute">failed {token.failures}×</span> : null}
      </p>
      {token.called && <p className="mute">Called {token.called.definitionId}; complete, it gives:</p>}
      {token.message && (
        <p className="mute">
          Waits for the message {token.message.name} with the key {token.message.correlationKey}
        </p>
      )}
      {token.state === "BACKOFF" && <p className="mute">Waits to be tried again</p>}
      {own.length > 0 && (
        <>
          <textarea className="in mono" rows={Math.min(6, variables.split("\n").length)} spellCheck={false} aria-label={`Variables of ${label}`} aria-invalid={given === undefined} value={variables} onChange={(event) => setVariables(event.target.value)} />
          {fails && <input className="in mono" placeholder="Error code, if it fails" aria-label={`Error code of ${label}`} value={code} onChange={(event) => setCode(event.target.value)} />}
          {type === "USER_TASK" && <input className="in" placeholder="Completed by" aria-label={`Who completes ${label}`} value={by} onChange={(event) => setBy(event.target.value)} />}
          <p className="acts">
            {own.map((move, at) => (
              <button key={at} type="button" className={at === 0 ? "btn sm pri" : "btn sm"} disabled={given === undefined} onClick={() => make(move)}>
                {move.do === "fail" && move.retryable !== false ? "Fail, try again" : DO[move.do]}
              </button>
            ))}
          </p>
        </>
      )}
    </section>
  );
}

function Timer({ timer, at, nameOf, act }: { timer: SimulatedTimer; at: string; nameOf: (id: string) => string; act: (move: Move) => void }) {
  const what = timer.kind === "retry" ? "Try again" : timer.kind === "wait" ? "End of the wait" : "Goes on";
  const label = timer.target ? nameOf(timer.target) : `${what}: ${nameOf(timer.stepId)}`;
  return (
    <section className="card" aria-label={`Timer: ${label}`}>
      <p>
        <span className="tag">Timer</span> <b>{label}</b>
      </p>
      <p className="mute">
        in {span(timer.fireAt, at)}
        {timer.target && `, ${timer.interrupting ? "instead of" : "beside"} ${nameOf(timer.stepId)}`}
      </p>
      <p className="acts">
        <button type="button" className="btn sm" onClick={() => act({ do: "fire", tokenId: timer.tokenId, stepId: timer.stepId, index: timer.index })}>
          Let it fire
        </button>
      </p>
    </section>
  );
}

/** What may come though nothing waits for it, and what ends or mends the whole. */
function Others({ can, nameOf, act }: { can: readonly Move[]; nameOf: (id: string) => string; act: (move: Move) => void }) {
  const early = can.filter((move) => move.tokenId === undefined && (move.do === "signal" || move.do === "message"));
  const [at, setAt] = useState(0);
  const [key, setKey] = useState("");
  const [variables, setVariables] = useState("{}");
  const given = valuesOf(variables);
  const chosen = early[at];
  return (
    <>
      <p className="acts">
        {can.some((move) => move.do === "retry") && (
          <button type="button" className="btn sm pri" onClick={() => act({ do: "retry" })}>
            Retry
          </button>
        )}
        {can
          .filter((move) => move.do === "cancel" && move.tokenId === undefined)
          .map((move) => (
            <button key={String(move.compensate)} type="button" className="btn sm" onClick={() => act(move)}>
              {move.compensate ? "Cancel and undo" : "Cancel"}
            </button>
          ))}
      </p>
      {chosen && (
        <details>
          <summary>A signal or a message that nobody waits for yet</summary>
          <select className="in" aria-label="What comes" value={at} onChange={(event) => setAt(Number(event.target.value))}>
            {early.map((move, place) => (
              <option key={place} value={place}>
                {move.do === "signal" ? `Signal to ${nameOf(move.stepId ?? "")}` : `Message ${move.name}`}
              </option>
            ))}
          </select>
          {chosen.do === "message" && <input className="in mono" placeholder="Correlation key" aria-label="Correlation key" value={key} onChange={(event) => setKey(event.target.value)} />}
          <textarea className="in mono" rows={1} spellCheck={false} aria-label="Variables of what comes" aria-invalid={given === undefined} value={variables} onChange={(event) => setVariables(event.target.value)} />
          <p className="acts">
            <button
              type="button"
              className="btn sm"
              disabled={given === undefined || (chosen.do === "message" && key === "")}
              onClick={() => act({ ...chosen, ...(given && Object.keys(given).length ? { variables: given } : {}), ...(chosen.do === "message" ? { correlationKey: key } : {}) })}
            >
              Let it come
            </button>
          </p>
        </details>
      )}
    </>
  );
}

function Variables({ view, nameOf }: { view: SimulationView; nameOf: (id: string) => string }) {
  const by = new Map<string, string>();
  for (const one of view.trace) for (const { name, stepId } of one.changed) by.set(name, stepId);
  const last = new Set(view.trace.at(-1)?.changed.map((one) => one.name));
  return (
    <>
      <h2>Variables</h2>
      <dl className="values">
        {Object.entries(view.variables).map(([name, value]) => (
          <div key={name} className={last.has(name) ? "fresh" : ""}>
            <dt>{name}</dt>
            <dd>
              <code>{JSON.stringify(value)}</code> {by.has(name) && <span className="mute">from {nameOf(by.get(name)!)}</span>}
            </dd>
          </div>
        ))}
      </dl>
      {view.result !== undefined && (
        <p>
          Result <code>{JSON.stringify(view.result)}</code>
        </p>
      )}
    </>
  );
}

/** With what it is started: another one starts it again. */
function Started({ trial, change }: { trial: Trial; change: (to: Trial) => void }) {
  const [variables, setVariables] = useState(trial.variables);
  return (
    <details>
      <summary>Start with other variables</summary>
      <textarea className="in mono" rows={5} spellCheck={false} aria-label="Variables to start with" aria-invalid={valuesOf(variables) === undefined} value={variables} onChange={(event) => setVariables(event.target.value)} />
      <p className="acts">
        <button type="button" className="btn sm" disabled={valuesOf(variables) === undefined} onClick={() => change({ ...trial, variables, moves: [] })}>
          Start with these
        </button>
      </p>
    </details>
  );
}

function picture(view: SimulationView): { states: Map<string, StepState>; taken: Set<string> } {
  const states = new Map<string, StepState>();
  for (const { stepId, times, status } of view.steps) states.set(stepId, { look: DONE[status] ?? "done", times });
  const entered = new Map<string, number>();
  for (const token of view.tokens) if (token.item === undefined) entered.set(token.stepId, (entered.get(token.stepId) ?? 0) + 1);
  for (const token of view.tokens) {
    const times = (view.steps.find((one) => one.stepId === token.stepId)?.times ?? 0) + (entered.get(token.stepId) ?? 0);
    states.set(token.stepId, { look: WAITS.has(token.state) ? "wait" : "run", times: Math.max(1, times) });
  }
  return { states, taken: new Set(view.path.map(({ from, to }) => `${from}>${to}`)) };
}

function told(move: Move, nameOf: (id: string) => string): string {
  const where = move.stepId === undefined ? "" : nameOf(move.stepId);
  const values = move.variables ? ` with ${JSON.stringify(move.variables)}` : "";
  switch (move.do) {
    case "complete":
      return `${where} completed${move.by ? ` by ${move.by}` : ""}${values}`;
    case "fail":
      return `${where} failed${move.errorCode ? ` with ${move.errorCode}` : ""}${move.retryable === false ? " for good" : ""}`;
    case "cancel":
      return where ? `What ${where} called was cancelled` : move.compensate ? "Cancelled and undone" : "Cancelled";
    case "signal":
      return `Signal to ${where}${values}`;
    case "message":
      return `Message ${move.name} ${move.correlationKey}${values}`;
    case "fire":
      return `A timer of ${where} fired`;
    case "advance":
      return "Time went on";
    default:
      return "Retried";
  }
}

function after(view: SimulationView): string {
  return view.at === view.startedAt ? "the moment of the start" : `${span(view.at, view.startedAt)} after the start`;
}

function span(at: string, from: string): string {
  return duration(Date.parse(at) - Date.parse(from));
}

/** None when that is no JSON object. */
function valuesOf(text: string): Record<string, unknown> | undefined {
  try {
    return parse(text).kind === "object" ? (JSON.parse(text) as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}
