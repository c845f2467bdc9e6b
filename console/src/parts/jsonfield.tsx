// A field of a form for a JSON object: coloured and folded in an editor, with the line and column of what is amiss, and
// put in order by a button. The form has its text by its name.
import { useId, useMemo, useRef, useState } from "react";
import { pretty } from "../modeller/json";
import { flawOf, placeOf } from "./jsontyped";
import { loaded } from "./loaded";

const useEditor = loaded(() => import("../editor/source"));
const NOWHERE = { current: null };

interface Props {
  label: string;
  name: string;
  /** What it is until somebody types. */
  initial?: string;
  changed?: (text: string) => void;
}

/** Steps back and forth; what belongs to one step has one group. */
function useTyped(initial: string, changed: (text: string) => void) {
  const [typed, setTyped] = useState<string>();
  const now = useRef(initial);
  now.current = typed ?? initial;
  const steps = useRef({ undo: [] as string[], redo: [] as string[], group: "" });
  const show = (text: string) => {
    now.current = text;
    setTyped(text);
    changed(text);
  };
  const put = (text: string, group: string) => {
    const { undo } = steps.current;
    if (group !== steps.current.group) undo.push(now.current);
    steps.current = { undo, redo: [], group };
    show(text);
  };
  const step = (way: "undo" | "redo") => {
    const next = steps.current[way].pop();
    if (next === undefined) return;
    steps.current[way === "undo" ? "redo" : "undo"].push(now.current);
    steps.current.group = "";
    show(next);
  };
  return { text: now.current, put, step };
}

export function JsonField({ label, name, initial = "{}", changed }: Props) {
  const Editor = useEditor()?.default;
  const [id, help] = [useId(), useId()];
  const kept = useRef<HTMLInputElement>(null);
  const { text, put, step } = useTyped(initial, (typed) => {
    kept.current!.dispatchEvent(new Event("input", { bubbles: true })); // the form hears of it, as of its other fields
    changed?.(typed);
  });
  const plain = useRef<HTMLTextAreaElement>(null);
  const flaw = useMemo(() => flawOf(text), [text]);
  const flaws = useMemo(() => (flaw ? [{ start: flaw.at, end: flaw.at + 1, hint: false, text: flaw.text }] : []), [flaw]);
  const place = flaw && placeOf(text, flaw.at);
  const focused = plain.current !== null && plain.current === document.activeElement;
  const at = focused ? { anchor: plain.current!.selectionStart, head: plain.current!.selectionEnd } : undefined;
  return (
    <div className="field json">
      {Editor ? <span className="lbl" aria-hidden="true">{label}</span> : <label htmlFor={id}>{label}</label>}
      {Editor ? (
        <Editor label={label} describedBy={help} text={text} flaws={flaws} change={put} step={step} mark={NOWHERE} at={at} leavesByTab />
      ) : (
        <textarea ref={plain} id={id} className="in mono" rows={8} value={text} spellCheck={false} aria-describedby={help} onChange={(event) => put(event.target.value, "plain")} />
      )}
      <input ref={kept} type="hidden" name={name} value={text} />
      <div className="line">
        <p id={help} className={flaw ? "wrong" : "mute"} aria-live="polite">
          {flaw ? `Line ${place!.line}, column ${place!.column}: ${flaw.text}` : "Valid JSON"}
        </p>
        <button type="button" className="btn sm" disabled={flaw !== undefined} onClick={() => put(pretty(text.trim() || "{}").trimEnd(), `format ${text.length}`)}>
          Format
        </button>
      </div>
    </div>
  );
}
