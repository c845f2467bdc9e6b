// What the engine says of the draft, below it: problems first, then hints. Each leads to its step, or to its place in the text.
import { memo, useCallback, useMemo, useRef, useState } from "react";
import { Link } from "wouter";
import { Icon } from "../parts/icons";
import { loaded } from "../parts/loaded";
import type { Finding, Verdict } from "./check";
import { useAnyUntaken } from "./context";
import { type Draft, pathIn } from "./draft";
import { nodeAt, stringOf } from "./json";
import { useTurn } from "./turn";

const SHOWN_MAX = 200;
/** More than are in sight, and how many come when somebody has scrolled that near to the last. */
const FIRST = 8;
const MORE = 24;
const NEAR_PX = 300;

interface Props {
  verdict: Verdict;
  draft: Draft;
  show: (finding: Finding) => void;
  edit: (to: (now: string) => string) => void;
}

export function Findings({ verdict, draft, show, edit }: Props) {
  const { check, error, findings, stale } = verdict;
  const problems = findings.filter((one) => !one.hint).length;
  const untaken = useAnyUntaken();
  const keyed = useMemo(() => findings.slice(0, SHOWN_MAX).map((one) => ({ ...one, key: `${one.path} ${one.text}` })), [findings]);
  const [folded, fold] = useState(isFolded);
  const listed = useMemo(() => (folded ? keyed.filter((one) => !one.hint) : keyed), [keyed, folded]);
  const [most, setMost] = useState(FIRST);
  const shown = listed.slice(0, most);
  const isDue = useTurn(listed.length > 0); // the frame in which the picture makes room for it is not that of all else it tells
  const shows = useRef(show);
  shows.current = show;
  const showIt = useCallback((finding: Finding) => shows.current(finding), []);
  const names = useMemo(() => new Map(draft.definition.steps.map(({ id, name }) => [id, name || id])), [draft]);
  return (
    <section className="findings" aria-label="Problems">
      <div className="line">
        <span role="status" className="line">
        {error ? (
          <b className="wrong">Not checked: {error.message}</b>
        ) : check === undefined ? (
          <b>Not checked yet</b>
        ) : untaken && problems === 0 ? (
          <b>Not checked: a field holds what the definition has not yet</b>
        ) : stale && problems === 0 ? (
          <b>Being checked by the engine</b>
        ) : (
          <>
            <b className={problems ? "wrong" : "fine"}>{problems === 0 ? "No problems" : problems === 1 ? "1 problem" : `${problems} problems`}</b>
            {findings.length > problems && <span className="mute">{findings.length - problems === 1 ? "1 hint, which keeps nothing from an upload" : `${findings.length - problems} hints, which keep nothing from an upload`}</span>}
            <span className="mute">{stale ? "being checked by the engine" : "checked by the engine"}{untaken && ", but for what a field holds that the definition has not yet"}</span>
          </>
        )}
        </span>
        {findings.length > problems && (
          <button
            type="button"
            className="link"
            aria-expanded={!folded}
            onClick={() => {
              fold(!folded);
              keepFolded(!folded);
            }}
          >
            {folded ? "Show hints" : "Hide hints"}
          </button>
        )}
      </div>
      {isDue && listed.length > 0 && (
        <ul
          tabIndex={0}
          aria-label="Problems and hints"
          onScroll={({ currentTarget: { scrollTop, clientHeight, scrollHeight } }) => scrollTop + clientHeight > scrollHeight - NEAR_PX && setMost((now) => Math.min(listed.length, now + MORE))}
        >
          {shown.map((one, at) => (
            <Row key={one.key} one={one} at={at} of={listed.length} name={one.step === undefined ? "The definition" : (names.get(one.step) ?? one.step)} draft={stale ? undefined : draft} show={showIt} edit={edit} />
          ))}
        </ul>
      )}
    </section>
  );
}

interface RowProps {
  one: Finding;
  /** Its place among all, of which not all are here. */
  at: number;
  of: number;
  name: string;
  /** None: what is told is of another text, and can't be mended. */
  draft: Draft | undefined;
  show: (finding: Finding) => void;
  edit: (to: (now: string) => string) => void;
}

const useFixes = loaded(() => import("./fixes"));

const Row = memo(function Row({ one, at, of, name, draft, show, edit }: RowProps) {
  const known = useFixes(draft !== undefined);
  const fixes = useMemo(() => (known && draft ? known.fixesOf(one, draft) : []), [known, one, draft]);
  const queue = draft && one.kind === "NOBODY_POLLS" ? stringOf(nodeAt(draft.root, pathIn(draft, one.path))) : undefined;
  return (
    <li aria-posinset={at + 1} aria-setsize={of}>
      <span className={`st ${one.hint ? "hint" : "fail"}`}>
        <Icon name={one.hint ? "info" : "close"} />
        {one.hint ? "Hint" : "Problem"}
      </span>
      <button type="button" className="link" onClick={() => show(one)}>
        {name}
      </button>
      <span>
        <code>{one.path}</code> {one.text}{" "}
        {fixes.map((fix) => (
          <button key={fix.label} type="button" className="btn sm" onClick={() => edit(fix.to)}>
            {fix.label}
          </button>
        ))}
        {queue !== undefined && <Link className="btn sm" href={`/jobs?${new URLSearchParams({ jobType: queue, state: "WAITING" })}`}>Show queue</Link>}
      </span>
    </li>
  );
});

const FOLDED = "penstock.hints";

function isFolded(): boolean {
  try {
    return localStorage.getItem(FOLDED) === "folded";
  } catch {
    return false; // a browser that keeps nothing
  }
}

function keepFolded(folded: boolean): void {
  try {
    if (folded) localStorage.setItem(FOLDED, "folded");
    else localStorage.removeItem(FOLDED);
  } catch {
    // it lasts as long as the page
  }
}
