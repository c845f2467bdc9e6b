// What a draft changes: against the version that it began from, in one picture, and which running instances stand there.
import { useMemo } from "react";
import { changesOf, unionOf } from "../graph/diff";
import { Picture } from "../graph/picture";
import { ChangeList, notesOfChanges } from "../pages/changes";
import { Touches } from "../pages/definition";
import { Empty } from "../parts/states";
import { type Draft, definitionOf } from "./draft";

interface Props {
  draft: Draft;
  base: Draft;
  /** The version that it began from; none: there was none. */
  version: number | undefined;
  valid: boolean;
  selected: string | undefined;
  select: (id: string | undefined) => void;
}

export function Differences({ draft, base, version, valid, selected, select }: Props) {
  const [before, after] = useMemo(() => [definitionOf(base), definitionOf(draft)], [base, draft]);
  const changes = useMemo(() => changesOf(before, after), [before, after]);
  const texts = useMemo(() => ({ before: base.text, after: draft.text }), [base, draft]);
  // A layout is kept by id: this one is of these two texts.
  const union = useMemo(() => ({ ...unionOf(before, after), id: `differences ${draft.text.length} ${JSON.stringify(changes)}` }), [before, after, changes, draft]);
  if (draft.text === base.text)
    return (
      <Empty title="Nothing has changed">
        <p>Against {version === undefined ? "what it began as" : `version ${version}`}.</p>
      </Empty>
    );
  return (
    <div className="halves">
      <section aria-label="Picture" className="half">
        <Picture definition={union} notes={notesOfChanges(changes)} selected={selected} onSelect={select} />
      </section>
      <section className="half side" aria-label="Changes">
        <div className="panel" tabIndex={0} role="group" aria-label="Changes">
          <ChangeList changes={changes} before={before} after={after} texts={texts} selected={selected} select={select} />
          {version !== undefined && valid && <Touches definition={after} version="the new version" />}
        </div>
      </section>
    </div>
  );
}
