// What the engine says of the draft, below it: problems first, then hints. Each leads to its step, or to its place in the text.
import { useMemo } from "react";
import { Icon } from "../parts/icons";
import type { Finding, Verdict } from "./check";
import type { Draft } from "./draft";
import { fixesOf } from "./fixes";
import { useSlices } from "./sight";

const SHOWN_MAX = 200;
/** New ones that come with one frame. */
const SLICE_MAX = 20;

const keyOf = ({ key }: { key: string }) => key;

interface Props {
  verdict: Verdict;
  draft: Draft;
  show: (finding: Finding) => void;
  edit: (to: (now: string) => string) => void;
}

export function Findings({ verdict, draft, show, edit }: Props) {
  const { check, error, findings, stale } = verdict;
  const problems = findings.filter((one) => !one.hint).length;
  const keyed = useMemo(() => findings.slice(0, SHOWN_MAX).map((one) => ({ ...one, key: `${one.path} ${one.text}` })), [findings]);
  const shown = useSlices(keyed, keyOf, SLICE_MAX);
  const name = (id: string) => draft.definition.steps.find((step) => step.id === id)?.name || id;
  return (
    <section className="findings" aria-label="Problems">
      <p role="status" className="line">
        {error ? (
          <b className="wrong">Not checked: {error.message}</b>
        ) : check === undefined ? (
          <b>Not checked yet</b>
        ) : (
          <>
            <b className={problems ? "wrong" : "fine"}>{problems === 0 ? "No problems" : problems === 1 ? "1 problem" : `${problems} problems`}</b>
            {findings.length > problems && <span className="mute">{findings.length - problems === 1 ? "1 hint, which keeps nothing from an upload" : `${findings.length - problems} hints, which keep nothing from an upload`}</span>}
            <span className="mute">{stale ? "being checked by the engine" : "checked by the engine"}</span>
          </>
        )}
      </p>
      {findings.length > 0 && (
        <ul tabIndex={0} aria-label="Problems and hints">
          {shown.map((one) => (
            <li key={one.key}>
              <span className={`st ${one.hint ? "hint" : "fail"}`}>
                <Icon name={one.hint ? "info" : "close"} />
                {one.hint ? "Hint" : "Problem"}
              </span>
              <button type="button" className="link" onClick={() => show(one)}>
                {one.step === undefined ? "The definition" : name(one.step)}
              </button>
              <span>
                <code>{one.path}</code> {one.text}{" "}
                {!stale &&
                  fixesOf(one, draft).map((fix) => (
                    <button key={fix.label} type="button" className="btn sm" onClick={() => edit(fix.to)}>
                      {fix.label}
                    </button>
                  ))}
              </span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
