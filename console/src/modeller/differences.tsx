// What a draft changes: against the version that it began from, beside it as a picture, and which running instances stand there.
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { textOf } from "../api/asks";
import { changesOf } from "../graph/diff";
import { ChangesPanel, TwoPictures } from "../pages/compared";
import { Empty, Problem, Skeleton } from "../parts/states";
import { type Draft, definitionOf, readDraft } from "./draft";
import { NewlyRead } from "./newlyread";

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
  if (version !== undefined || latest === undefined) return <Compared {...props} version={version} latest={latest} />;
  if (there.error) return <Problem error={there.error} retry={() => there.refetch()} />;
  return there.data ? <Compared {...props} base={base} version={latest} latest={latest} /> : <Skeleton />;
}

function Compared({ draft, base, version, latest, valid, selected, select }: Props) {
  // Of another id it is another definition, which nothing runs of.
  const known = version !== undefined && draft.definition.id === base.definition.id;
  const [before, after] = useMemo(() => [{ ...definitionOf(base), ...(version === undefined ? {} : { version }) }, definitionOf(draft)], [base, draft, version]);
  const changes = useMemo(() => changesOf(before, after), [before, after]);
  const texts = useMemo(() => ({ before: base.text, after: draft.text }), [base, draft]);
  if (draft.text === base.text)
    return (
      <Empty title="Nothing has changed">
        <p>Against {version === undefined ? "what it began as" : `version ${version}`}.</p>
      </Empty>
    );
  return (
    <div className="halves">
      <section aria-label="Picture" className="half">
        <TwoPictures
          id={`differences ${base.text}\n${draft.text}`}
          before={before}
          after={after}
          changes={changes}
          names={{ before: version === undefined ? "Before" : `v${version}`, after: "Draft" }}
          selected={selected}
          onSelect={select}
        />
      </section>
      <section className="half side" aria-label="Changes">
        <div className="panel" tabIndex={0} role="group" aria-label="Changes">
          <ChangesPanel changes={changes} before={before} after={after} texts={texts} touches={known && valid ? `v${(latest ?? version) + 1}` : undefined} selected={selected} select={select}>
            {known && valid && <NewlyRead base={base} draft={draft} />}
          </ChangesPanel>
        </div>
      </section>
    </div>
  );
}
