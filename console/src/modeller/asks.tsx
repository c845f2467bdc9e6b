// What is asked before an edit that could be meant in several ways.
import { useState } from "react";
import type { Step } from "../api/client";
import { Dialog } from "../parts/dialog";
import type { TimerFields } from "./edits";
import type { BoundaryType } from "./palette";
import { inWords } from "./spoken";

interface RemoveProps {
  ids: readonly string[];
  /** Steps to one of which what led there could lead: those to which it leads on come first; with none of these it may lead nowhere. */
  next: readonly string[];
  others: readonly string[];
  act: (instead: string | undefined) => void;
  close: () => void;
}

export function RemoveDialog({ ids, next, others, act, close }: RemoveProps) {
  return (
    <Dialog title={`Delete ${ids.join(", ")}?`} verb="Delete" danger close={close} act={async (form) => act(String(form.get("instead")) || undefined)}>
      <div className="field">
        <label htmlFor="instead">What leads there leads to</label>
        <select id="instead" name="instead" className="in">
          {next.map((id) => (
            <option key={id}>{id}</option>
          ))}
          <option value="">nowhere</option>
          {others.map((id) => (
            <option key={id}>{id}</option>
          ))}
        </select>
      </div>
    </Dialog>
  );
}

export interface Hanging {
  type: BoundaryType;
  onto: string;
}

interface HangProps extends Hanging {
  steps: readonly Step[];
  /** To none of the steps: to a new task. */
  act: (to: string | undefined, timer: TimerFields) => void;
  close: () => void;
}

export function HangDialog({ type, onto, steps, act, close }: HangProps) {
  const name = steps.find((step) => step.id === onto)?.name || onto;
  const [after, setAfter] = useState("PT1H");
  return (
    <Dialog
      title={type === "TIMER" ? `A timer on ${name}` : `An error of ${name}`}
      verb="Add"
      close={close}
      act={async (form) => act(String(form.get("leads")) || undefined, { duration: String(form.get("after")).trim(), interrupting: form.get("beside") === null })}
    >
      <div className="field">
        <label htmlFor="leads">It leads to</label>
        <select id="leads" name="leads" className="in">
          <option value="">a new task</option>
          {steps.map(({ id, name }) => (
            <option key={id} value={id}>
              {name && name !== id ? `${name} (${id})` : id}
            </option>
          ))}
        </select>
      </div>
      {type === "TIMER" ? (
        <>
          <div className="field">
            <label htmlFor="after">After</label>
            <input id="after" name="after" className="in mono" value={after} onChange={({ target }) => setAfter(target.value)} aria-describedby="after-says" required />
            <p id="after-says" className="mute">
              {inWords(after.trim()) ?? "Not a duration"}. PT30M is {inWords("PT30M")}, PT1H {inWords("PT1H")}, P30D {inWords("P30D")}.
            </p>
          </div>
          <div className="field tick">
            <label>
              <input type="checkbox" name="beside" /> The step goes on beside it
            </label>
          </div>
        </>
      ) : (
        <p className="mute">For any error: which codes it takes is said in its fields.</p>
      )}
    </Dialog>
  );
}
