// The differences of two texts of a definition: step by step, and line by line.
import { Fragment, useState } from "react";
import type { Definition } from "../api/client";
import type { StepChange } from "../graph/diff";
import type { Note } from "../graph/picture";
import { loaded } from "../parts/loaded";
import { Skeleton } from "../parts/states";

export function notesOfChanges(changes: StepChange[]): Map<string, Note> {
  return new Map(changes.map((one) => [one.id, { look: one.how === "renamed" ? "changed" : one.how, word: wordOf(one) }]));
}

function wordOf(change: StepChange): string {
  if (change.how === "renamed") return `renamed, was ${change.before}`;
  return change.how === "changed" ? `changed: ${change.fields.join(", ")}` : change.how;
}

interface Props {
  changes: StepChange[];
  before: Definition;
  after: Definition;
  /** Both as they are written. */
  texts: { before: string; after: string };
  selected: string | undefined;
  select: (id: string | undefined) => void;
}

export function ChangeList({ changes, before, after, texts, selected, select }: Props) {
  const [read, setRead] = useState(false);
  return (
    <>
      {changes.length === 0 && <p className="mute note">No step differs. What differs is the name, the description, metadata or the order of steps.</p>}
      <ul className="changes">
        {changes.map((one) => (
          <li key={`${one.how} ${one.id}`}>
            <button type="button" className="link" aria-pressed={selected === one.id} onClick={() => select(selected === one.id ? undefined : one.id)}>
              {one.name}
            </button>{" "}
            <span className={`how ${one.how}`}>{wordOf(one)}</span>
            <Fields change={one} before={before} after={after} />
          </li>
        ))}
      </ul>
      <details className="textdiff" onToggle={(event) => setRead(event.currentTarget.open)}>
        <summary>The text, line by line</summary>
        {read && <TextDiff {...texts} />}
      </details>
    </>
  );
}

/** What differs in a step: what it was, what it is. */
function Fields({ change, before, after }: { change: StepChange; before: Definition; after: Definition }) {
  if (change.how !== "changed") return null;
  const valueOf = (definition: Definition, field: string) => {
    const step = definition.steps.find((one) => one.id === change.id) as Record<string, unknown> | undefined;
    const value = step?.[field];
    return value === undefined ? undefined : typeof value === "string" ? value : JSON.stringify(value, null, 1);
  };
  return (
    <pre className="fielddiff">
      {change.fields.map((field) => {
        const [was, is] = [valueOf(before, field), valueOf(after, field)];
        return (
          <Fragment key={field}>
            {was !== undefined && <del>{`- ${field} ${was}\n`}</del>}
            {is !== undefined && <ins>{`+ ${field} ${is}\n`}</ins>}
          </Fragment>
        );
      })}
    </pre>
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
