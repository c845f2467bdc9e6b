// The differences of two texts of a definition: which running instances they touch, step by step, and line by line.
import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { Link } from "wouter";
import { type Definition, engine } from "../api/client";
import { linesOf, type StepChange, summaryOf } from "../graph/diff";
import { Icon, type IconName } from "../parts/icons";
import { loaded } from "../parts/loaded";
import { Problem, Skeleton } from "../parts/states";
import { Ago } from "../parts/time";

const IMPACT_STALE_MS = 60_000;
const HOW: Record<StepChange["how"], { word: string; look: string; icon: IconName }> = {
  added: { word: "Added", look: "ok", icon: "tick" },
  changed: { word: "Changed", look: "retry", icon: "retry" },
  renamed: { word: "Renamed", look: "retry", icon: "retry" },
  removed: { word: "Removed", look: "fail", icon: "dash" },
};

interface Props {
  changes: readonly StepChange[];
  before: Definition;
  after: Definition;
  /** Both as they are written. */
  texts: { before: string; after: string };
  /** What the later one is called by those that take it: `v8`. Without: nobody is touched by what is not valid, or has no version before it. */
  touches: string | undefined;
  selected: string | undefined;
  select: (id: string | undefined) => void;
  /** Between what differs and the text. */
  children?: ReactNode;
}

export function ChangesPanel({ changes, before, after, texts, touches, selected, select, children }: Props) {
  const [read, setRead] = useState(false);
  return (
    <div className="compared">
      {touches !== undefined && <Touches changes={changes} before={before} after={after} name={touches} selected={selected} select={select} />}
      <section aria-label="What differs">
        <h2>Changes</h2>
        <p className="mute">{changes.length === 0 ? "No step differs. What differs is the name, the description, metadata or the order of steps." : summaryOf(changes)}</p>
        <ul className="changes">
          {changes.map((one) => (
            <Change key={`${one.how} ${one.id}`} change={one} before={before} after={after} selected={selected === one.id} select={select} />
          ))}
        </ul>
      </section>
      {children}
      <details className="textdiff" onToggle={(event) => setRead(event.currentTarget.open)}>
        <summary>The text, line by line</summary>
        {read && <TextDiff {...texts} />}
      </details>
    </div>
  );
}

interface ChangeProps {
  change: StepChange;
  before: Definition;
  after: Definition;
  selected: boolean;
  select: (id: string | undefined) => void;
}

function Change({ change, before, after, selected, select }: ChangeProps) {
  const { word, look, icon } = HOW[change.how];
  const lines = linesOf(change, before, after);
  return (
    <li>
      <p>
        <span className={`st ${look}`}>
          <Icon name={icon} />
          {word}
        </span>
        <button type="button" className="link" aria-pressed={selected} onClick={() => select(selected ? undefined : change.id)}>
          {change.name}
        </button>
      </p>
      {lines.length > 0 && (
        <pre>
          {lines.map(({ sign, text }) => (sign === "-" ? <del key={`- ${text}`}>{`- ${text}\n`}</del> : <ins key={`+ ${text}`}>{`+ ${text}\n`}</ins>))}
        </pre>
      )}
    </li>
  );
}

interface TouchesProps {
  changes: readonly StepChange[];
  before: Definition;
  after: Definition;
  name: string;
  selected: string | undefined;
  select: (id: string | undefined) => void;
}

/** Which open instances stand where the later one is another one. They stay on their own version. */
function Touches({ changes, before, after, name, selected, select }: TouchesProps) {
  const found = useQuery({ queryKey: ["impact", after.id, after.version ?? after], queryFn: ({ signal }) => engine.impact(after, signal), staleTime: IMPACT_STALE_MS });
  if (found.error) return <Problem error={found.error} retry={() => found.refetch()} />;
  if (!found.data) return <Skeleton rows={2} />;
  const rows = found.data.versions.filter((one) => one.version !== after.version && one.open > 0);
  const nameOf = (id: string) => [after, before].flatMap(({ steps }) => steps.find((step) => step.id === id)?.name || []).at(0) ?? id;
  // To a migration it is gone until that is told which step stands in its place.
  const renamed = new Map(changes.flatMap((one) => (one.before === undefined ? [] : [[one.before, one] as const])));
  const nowCalled = ({ stepId, change }: { stepId: string; change: string }) => (change === "REMOVED" ? renamed.get(stepId) : undefined);
  const atRenamed = ({ steps }: (typeof rows)[number]) => steps.reduce((sum, step) => sum + (nowCalled(step) ? step.open : 0), 0);
  const stand = rows.flatMap(({ version, steps }) => steps.filter((step) => step.change !== "SAME" && step.open > 0).map((step) => ({ ...step, version })));
  const listed = (version: number, status: string) => `/instances?${new URLSearchParams({ status, definitionId: after.id, definitionVersion: String(version) })}`;
  return (
    <section className="touches" aria-label="Which running instances it touches">
      <h2>Which running instances does this touch?</h2>
      {rows.length === 0 ? (
        <p className="mute">None: no instance of another version is open.</p>
      ) : (
        <>
          <table>
            <thead>
              <tr>
                <th>Open on</th>
                <th className="r">Instances</th>
                <th className="r">At a changed step</th>
                {renamed.size > 0 && <th className="r">At a renamed step</th>}
                <th className="r">At a removed step</th>
                <th>Show</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((one) => (
                <tr key={one.version}>
                  <td>v{one.version}</td>
                  <td className="r">{one.open.toLocaleString("en")}</td>
                  <td className="r">{one.atChanged.toLocaleString("en")}</td>
                  {renamed.size > 0 && <td className="r">{atRenamed(one).toLocaleString("en")}</td>}
                  <td className="r">{(one.atRemoved - atRenamed(one)).toLocaleString("en")}</td>
                  <td>
                    <Link href={listed(one.version, "ACTIVE")} aria-label={`Running instances of v${one.version}`}>
                      Running
                    </Link>
                    <Link href={listed(one.version, "WAITING")} aria-label={`Waiting instances of v${one.version}`}>
                      Waiting
                    </Link>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
          {stand.length > 0 && (
            <ul aria-label="Where they stand">
              {stand.map((one) => (
                <li key={`${one.version} ${one.stepId}`}>
                  <span>
                    <button type="button" className="link" aria-pressed={selected === one.stepId} onClick={() => select(selected === one.stepId ? undefined : one.stepId)}>
                      {nameOf(one.stepId)}
                    </button>
                    {one.change === "REMOVED" && <span className="mute">{nowCalled(one) ? `renamed, now ${nowCalled(one)!.id}` : "removed"}</span>}
                  </span>
                  <span>
                    {one.open.toLocaleString("en")} <span className="mute">of v{one.version}</span>
                  </span>
                </li>
              ))}
            </ul>
          )}
          <p className="mute">
            Running instances stay on their version. Only new ones take {name}. {stand.some(nowCalled) && "Those at a renamed step can be migrated where the migration says what it is called now. "}
            {!found.data.exact && "These numbers are about right: not all were counted. "}
            Counted <Ago at={found.data.at} />.
          </p>
        </>
      )}
    </section>
  );
}

const useEditor = loaded(() => import("../editor/compare"));

function TextDiff({ before, after }: { before: string; after: string }) {
  const Compare = useEditor()?.default;
  const [whole, setWhole] = useState(false);
  if (before === after) return <p className="mute note">No line differs.</p>;
  if (!Compare) return <Skeleton rows={3} />;
  return (
    <section aria-label="The text, line by line">
      <label className="line whole">
        <input type="checkbox" checked={whole} onChange={(event) => setWhole(event.target.checked)} /> Lines that are the same, too
      </label>
      <Compare before={before} after={after} whole={whole} />
    </section>
  );
}
