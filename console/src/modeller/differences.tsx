// What a draft changes: against the version that it began from, in one picture, and which running instances stand there.
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { textOf } from "../api/asks";
import { changesOf, unionOf } from "../graph/diff";
import { Picture } from "../graph/picture";
import { ChangeList, notesOfChanges } from "../pages/changes";
import { Touches } from "../pages/definition";
import { Empty, Problem, Skeleton } from "../parts/states";
import { type Draft, definitionOf, readDraft } from "./draft";

interface Props {
  draft: Draft;
  base: Draft;
  /** The version that it began from; none: there was none. */
  version: number | undefined;
  /** The engine's newest of the draft's id: one that began from none, such as a file, is compared with that. */
  latest: number | undefined;
  valid: boolean;
  selected: string | undefined;
  select: (id: string | undefined) => void;
}

export function Differences({ version, latest, ...props }: Props) {
  const id = props.draft.definition.id;
  const there = useQuery({ ...textOf(id, latest), enabled: version === undefined && latest !== undefined });
  const base = useMemo(() => (there.data ? readDraft(there.data.text) : props.base), [there.data, props.base]);
  if (version !== undefined || latest === undefined) return <Compared {...props} version={version} />;
  if (there.error) return <Problem error={there.error} retry={() => there.refetch()} />;
  return there.data ? <Compared {...props} base={base} version={latest} /> : <Skeleton />;
}

function Compared({ draft, base, version, valid, selected, select }: Omit<Props, "latest">) {
  const [before, after] = useMemo(() => [definitionOf(base), definitionOf(draft)], [base, draft]);
  const changes = useMemo(() => changesOf(before, after), [before, after]);
  const texts = useMemo(() => ({ before: base.text, after: draft.text }), [base, draft]);
  // A layout is kept by id: this one is of these two texts.
  const union = useMemo(() => ({ ...unionOf(before, after), id: `differences ${base.text}\n${draft.text}` }), [before, after, base, draft]);
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
