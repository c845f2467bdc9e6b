// What the engine says of a draft: asked a moment after the last key. This page has no rules of its own.
import { useQuery } from "@tanstack/react-query";
import { useMemo, useRef } from "react";
import { type DraftCheck, engine } from "../api/client";
import type { Note } from "../graph/picture";
import { type Draft, placeOf } from "./draft";
import { child, stringOf } from "./json";
import { useLater } from "./later";

const CHECKED_AFTER_MS = 250;
const NONE: Finding[] = [];

export interface Finding {
  hint: boolean;
  path: string;
  text: string;
  /** The step that it is in, as far as it has an id. */
  step?: string | undefined;
  field?: string | undefined;
}
export interface Verdict {
  /** Undefined: not checked yet, or the engine did not answer. */
  check?: DraftCheck | undefined;
  error: Error | null;
  /** The text has changed since. */
  stale: boolean;
  findings: Finding[];
}

export function useVerdict(text: string, draft: Draft): Verdict {
  const now = useMemo(() => ({ text, draft }), [text, draft]);
  const asked = useLater(now, CHECKED_AFTER_MS);
  const found = useQuery({
    queryKey: ["validate", asked.text],
    queryFn: async ({ signal }) => {
      const check = await engine.validate(asked.text, signal);
      return { check, findings: findingsOf(check, asked.draft) }; // in the draft of now its steps may stand elsewhere
    },
    placeholderData: (before) => before,
    gcTime: 0,
    retry: false,
  });
  const told = found.error ? undefined : found.data;
  return { check: told?.check, error: found.error, stale: asked.text !== text || found.isPlaceholderData || found.isPending, findings: told?.findings ?? NONE };
}

function findingsOf(check: DraftCheck, draft: Draft): Finding[] {
  const items = child(draft.root, "steps")?.items ?? [];
  const all = [...check.problems.map((one) => ({ ...one, text: one.reason, hint: false })), ...check.hints.map((one) => ({ ...one, hint: true }))];
  return all.map(({ path, text, hint }) => {
    const { step, field } = placeOf(path);
    return { hint, path, text, field, step: step === undefined ? undefined : stringOf(child(items[step], "id")) || undefined };
  });
}

/** What each step of the picture bears. A note that says the same stays the same object. */
export function useNotes(findings: readonly Finding[]): Map<string, Note> {
  const last = useRef(new Map<string, Note>());
  return useMemo(() => {
    const made = notesOf(findings);
    for (const [id, note] of made) {
      const before = last.current.get(id);
      if (before && before.look === note.look && before.word === note.word) made.set(id, before);
    }
    last.current = made;
    return made;
  }, [findings]);
}

function notesOf(findings: readonly Finding[]): Map<string, Note> {
  const bySteps = new Map<string, Finding[]>();
  for (const one of findings) if (one.step !== undefined) bySteps.set(one.step, [...(bySteps.get(one.step) ?? []), one]);
  return new Map(
    [...bySteps].map(([id, own]): [string, Note] => {
      const problems = own.filter((one) => !one.hint);
      const told = problems.length ? problems : own;
      return [id, { look: problems.length ? "fail" : "hint", count: problems.length ? "!" : "i", word: `${problems.length ? "problem" : "hint"}: ${told.map((one) => one.text).join("; ")}` }];
    }),
  );
}
