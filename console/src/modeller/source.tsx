// The draft as its JSON text, which is what all else here is made of.
import { useId, useImperativeHandle, useMemo, useRef } from "react";
import type { SourceProps } from "../editor/source";
import { loaded } from "../parts/loaded";
import type { Verdict } from "./check";
import { type Draft, rangeOf, sharedIds } from "./draft";
import type { JsonProblem } from "./json";

const LABEL = "The definition as JSON";
const useEditor = loaded(() => import("../editor/source"));

interface Props extends Pick<SourceProps, "text" | "change" | "step" | "mark"> {
  draft: Draft;
  broken: JsonProblem | undefined;
  verdict: Verdict;
}

export function Source({ text, draft, broken, verdict, change, step, mark }: Props) {
  const Editor = useEditor()?.default;
  const help = useId();
  const plain = useRef<HTMLTextAreaElement>(null);
  const { findings, stale, error } = verdict;
  const shared = useMemo(() => (broken ? [] : sharedIds(draft.root)), [broken, draft]);
  const flaws = useMemo(() => {
    if (broken) return [{ start: broken.at, end: broken.at + 1, hint: false, text: broken.message }];
    const unknown = stale || error !== null;
    if (unknown && shared.length === 0) return undefined;
    const told = unknown ? [] : findings.map((one) => ({ ...rangeOf(draft, one.path, one.character), hint: one.hint, text: one.text }));
    const own = shared.filter(({ start }) => !told.some((one) => one.start === start));
    return [...told, ...own.map(({ start, end }) => ({ start, end, hint: false, text: "another step has this id, too" }))];
  }, [broken, shared, stale, error, findings, draft]);
  const lineOf = (at: number) => text.slice(0, at).split("\n").length;
  useImperativeHandle(
    Editor ? null : mark,
    () =>
      ({ start, end }) => {
        plain.current!.setSelectionRange(asShown(text.slice(0, start)).length, asShown(text.slice(0, end)).length);
        plain.current!.focus();
      },
    [Editor, text],
  );
  const at = plain.current !== null && plain.current === document.activeElement ? selectedIn(plain.current) : undefined;
  return (
    <div className="source">
      {Editor ? (
        <Editor label={LABEL} describedBy={help} text={text} flaws={flaws} change={change} step={step} mark={mark} at={at} />
      ) : (
        <textarea ref={plain} className="mono" aria-label={LABEL} spellCheck={false} value={asShown(text)} onChange={(event) => change(endedAs(text, event.target.value), "json")} />
      )}
      {broken && (
        <p className="wrong" role="status">
          Line {lineOf(broken.at)}: {broken.message}. The picture shows what could be read last.
        </p>
      )}
      {shared.length > 0 && (
        <p className="wrong" role="status">
          Lines {lineOf(shared[0]!.start)} and {lineOf(shared[1]!.start)}: two steps have the id {String(shared[0]!.value)}. The picture shows the first one.
        </p>
      )}
      <p className="mute" id={help} hidden={!Editor}>
        <kbd>Esc</kbd> then <kbd>Tab</kbd> leaves the editor. <kbd>Ctrl F</kbd> searches, <kbd>F8</kbd> goes to the next problem, <kbd>Ctrl Shift [</kbd> folds.
      </p>
    </div>
  );
}

function selectedIn({ selectionStart: from, selectionEnd: to, selectionDirection }: HTMLTextAreaElement): SourceProps["at"] {
  return selectionDirection === "backward" ? { anchor: to, head: from } : { anchor: from, head: to };
}

/** As a text area shows it, and counts its characters. */
function asShown(text: string): string {
  return text.replaceAll("\r\n", "\n");
}

/** What was typed in a text area, with the line ends of the text before. */
function endedAs(before: string, typed: string): string {
  return /\r\n/.test(before) && !/(^|[^\r])\n/.test(before) ? typed.replaceAll("\n", "\r\n") : typed;
}
