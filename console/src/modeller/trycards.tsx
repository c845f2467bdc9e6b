// What can happen next in a trial: a card for each open execution and each timer, with what it is given.
import { type RefObject, useEffect, useState } from "react";
import type { SimulatedTimer, SimulatedToken, SimulationView, TriedMove } from "../api/client";
import { Fields, given, initial, problemsOf, type Schema, type Values } from "../parts/form";
import { loaded } from "../parts/loaded";
import { duration } from "../parts/time";
import { textOf } from "./json";
import { useVariables, variablesIn, VariablesText } from "./variables";

const KIND: Record<string, string> = { SERVICE_TASK: "Job", USER_TASK: "User task", CALL_ACTIVITY: "Call", WAIT: "Wait" };
const NOTHING = "{}";
const DO: Record<string, string> = { complete: "Complete", fail: "Fail for good", cancel: "Is cancelled", signal: "Signal", message: "Message" };

/** What somebody has given to open executions, by `keyOf`: the move, or none where it can't be made. */
export type Answers = ReadonlyMap<string, TriedMove | undefined>;

export function keyOf(tokenId: string | undefined, stepId: string | undefined): string {
  return `${tokenId} ${stepId}`;
}

interface OpenProps {
  token: SimulatedToken;
  type: string | undefined;
  /** What people see of a user task, if the definition has a form for it. */
  form: Schema | undefined;
  name: string;
  can: readonly TriedMove[];
  act: (move: TriedMove) => void;
  choose: () => void;
  answers: RefObject<Map<string, TriedMove | undefined>>;
}

export function Open({ token, type, form, name, can, act, choose, answers }: OpenProps) {
  const typed = useVariables(NOTHING);
  const [first] = useState<Values>(() => (form ? initial(form) : {}));
  const [values, setValues] = useState(first);
  const [filled, setFilled] = useState(form !== undefined);
  const [tried, setTried] = useState(false);
  const [by, setBy] = useState("");
  const [code, setCode] = useState("");
  const own = can.filter((move) => move.tokenId === token.id && move.do !== "fire");
  const problems = form && filled ? problemsOf(form, values) : {};
  const isRight = Object.keys(problems).length === 0 && (filled || typed.refusal === undefined);
  const moveOf = (move: TriedMove): TriedMove => {
    const variables = move.do === "cancel" ? undefined : variablesIn(form && filled ? textOf(given(values)) : typed.text);
    return {
      ...move,
      ...(variables === undefined ? {} : { variables }),
      ...(move.do === "fail" && code ? { errorCode: code } : {}),
      ...(move.do === "complete" && by ? { by } : {}),
    };
  };
  useEffect(() => {
    const key = keyOf(token.id, token.stepId);
    const complete = own.find((move) => move.do === "complete");
    if (complete && (by || (filled ? values !== first : typed.text !== NOTHING))) answers.current.set(key, isRight ? moveOf(complete) : undefined);
    return () => void answers.current.delete(key);
  });
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
  const fails = own.some((move) => move.do === "fail");
  const label = token.item === undefined ? name : `${name}, item ${token.item}`;
  const make = (move: TriedMove) => {
    setTried(true);
    if (Object.keys(problems).length === 0) act(moveOf(move));
  };
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
          {form && filled ? (
            <Fields schema={form} values={values} problems={tried ? problems : {}} change={setValues} />
          ) : (
            <VariablesText label={`Variables of ${label}`} rows={Math.min(6, typed.text.split("\n").length)} typed={typed} />
          )}
          {form && (
            <button
              type="button"
              className="link"
              onClick={() => {
                if (filled) typed.setText(textOf(given(values), true));
                setFilled(!filled);
              }}
            >
              {filled ? "Give it as JSON" : "Fill in the form"}
            </button>
          )}
          {fails && <input className="in mono" placeholder="Error code, if it fails" aria-label={`Error code of ${label}`} value={code} onChange={(event) => setCode(event.target.value)} />}
          {type === "USER_TASK" && <input className="in" placeholder="Completed by" aria-label={`Who completes ${label}`} value={by} onChange={(event) => setBy(event.target.value)} />}
          <p className="acts">
            {own.map((move, at) => (
              <button key={at} type="button" className={at === 0 ? "btn sm pri" : "btn sm"} disabled={!filled && typed.refusal !== undefined} onClick={() => make(move)}>
                {move.do === "fail" && move.retryable !== false ? "Fail, try again" : DO[move.do]}
              </button>
            ))}
          </p>
        </>
      )}
    </section>
  );
}

export function Timer({ timer, at, nameOf, act }: { timer: SimulatedTimer; at: string; nameOf: (id: string) => string; act: (move: TriedMove) => void }) {
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

const useEarly = loaded(() => import("./early"));

/** What ends or mends the whole, and what may come though nothing waits for it. */
export function Others({ can, nameOf, act }: { can: readonly TriedMove[]; nameOf: (id: string) => string; act: (move: TriedMove) => void }) {
  const moves = can.filter((move) => move.tokenId === undefined && (move.do === "signal" || move.do === "message"));
  const early = useEarly(moves.length > 0);
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
              {move.compensate ? "Cancel and compensate" : "Cancel"}
            </button>
          ))}
      </p>
      {moves.length > 0 && early && <early.Early moves={moves} nameOf={nameOf} act={act} />}
    </>
  );
}

export function told(move: TriedMove, nameOf: (id: string) => string): string {
  const where = move.stepId === undefined ? "" : nameOf(move.stepId);
  const values = move.variables ? ` with ${move.variables.trim()}` : "";
  switch (move.do) {
    case "complete":
      return `${where} completed${move.by ? ` by ${move.by}` : ""}${values}`;
    case "fail":
      return `${where} failed${move.errorCode ? ` with ${move.errorCode}` : ""}${move.retryable === false ? " for good" : ""}`;
    case "cancel":
      return where ? `What ${where} called was cancelled` : move.compensate ? "Cancelled and compensated" : "Cancelled";
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

export function after(view: SimulationView): string {
  return view.at === view.startedAt ? "the moment of the start" : `${span(view.at, view.startedAt)} after the start`;
}

export function span(at: string, from: string): string {
  return duration(Date.parse(at) - Date.parse(from));
}
