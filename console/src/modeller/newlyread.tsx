// Variables that a draft reads and the version before it did not: whether the runs that were have them.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useRef } from "react";
import { engine } from "../api/client";
import { useEditing } from "./context";
import type { Draft } from "./draft";
import { type Newly, newlyRead, withoutFailing } from "./newly";
import { inUse, setBy } from "./words";

const OFFERED_MAX = 3;

function readBy(draft: Draft) {
  return {
    queryKey: ["read by", draft.text],
    queryFn: async ({ signal }: { signal: AbortSignal }) => ({ draft, check: await engine.validateReads(draft.text, signal) }),
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
    retry: false,
  };
}

export function NewlyRead({ base, draft }: { base: Draft; draft: Draft }) {
  const before = useQuery(readBy(base));
  const now = useQuery({ ...readBy(draft), placeholderData: keepPreviousData });
  const used = useQuery(inUse(draft.definition.id));
  const heading = useRef<HTMLHeadingElement>(null);
  if (!before.data || !now.data || !used.data) return null;
  const names = newlyRead(before.data.check, now.data.check, used.data, setBy(now.data.draft));
  if (names.length === 0) return null;
  return (
    <section className="newly" aria-label="New variables it reads" aria-busy={now.isPlaceholderData}>
      <h2 ref={heading} tabIndex={-1}>
        New variables it reads
      </h2>
      <ul>
        {names.map((one) => (
          <li key={one.name}>
            <p>
              <code>{one.name}</code> {saidOf(one, used.data.of)}
            </p>
            <Fixes newly={one} draft={now.data.draft} disabled={now.isPlaceholderData} done={() => heading.current?.focus()} />
          </li>
        ))}
      </ul>
    </section>
  );
}

function saidOf({ missing, isNull, uses }: Newly, of: number): string {
  const some = (number: number) => (number < of ? `${number} of the last ${of} runs` : of === 1 ? "the last run" : `all of the last ${of} runs`);
  if (missing > 0) return `is missing in ${some(missing)}${uses.length ? ": there an expression that reads it fails." : ". It is read only where it may be."}`;
  return `is in ${some(of)}${isNull ? ", and nil in some: to read a field of it is an error there" : ""}.`;
}

function Fixes({ newly, draft, disabled, done }: { newly: Newly; draft: Draft; disabled: boolean; done: () => void }) {
  const { edit } = useEditing();
  if (newly.missing === 0 && !newly.isNull) return null;
  const offered = newly.uses.flatMap((use) => {
    const fix = withoutFailing(draft, use, newly.missing > 0);
    return fix ? [{ ...fix, step: stepOf(draft, use.path), key: `${use.path} ${use.from}` }] : [];
  });
  return offered.slice(0, OFFERED_MAX).map((fix) => (
    <p key={fix.key}>
      <button
        type="button"
        className="link mono"
        disabled={disabled}
        onClick={() => {
          edit(fix.to);
          done();
        }}
      >
        {fix.label}
      </button>
      {fix.step && <span className="mute"> in {fix.step}</span>}
    </p>
  ));
}

function stepOf(draft: Draft, path: string): string | undefined {
  const place = Number(/^steps\[(\d+)\]/.exec(path)?.[1] ?? -1);
  const id = [...draft.places].find(([, at]) => at === place)?.[0];
  return draft.definition.steps.find((step) => step.id === id)?.name || id;
}
