// What the engine says of a draft: asked a moment after the last key. This page has no rules of its own.
import { useQuery } from "@tanstack/react-query";
import { useMemo, useRef } from "react";
import { type DraftCheck, engine, isTemporary } from "../api/client";
import type { Note } from "../graph/picture";
import { NOTHING_TOLD, type Told } from "./context";
import { type Draft, pathIn } from "./draft";
import { child, stringOf } from "./json";
import { useLater } from "./later";
import { fieldAt, formOwner, nameOfPlace } from "./places";

const CHECKED_AFTER_MS = 250;
/** Where the engine did not answer. */
const ASKED_AGAIN_MS = 2_000;
const NONE: Finding[] = [];

export interface Finding {
  hint: boolean;
  path: string;
  /** Of an expression that can't be read, the character. */
  character?: number | undefined;
  text: string;
  /** Of a hint what it is about, for programs. */
  kind?: DraftCheck["hints"][number]["kind"] | undefined;
  /** The step that it is in, as far as it has an id. */
  step?: string | undefined;
  /** The field that it stands at (`nameOfPlace`). */
  place: string;
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
    refetchInterval: ({ state }) => (isTemporary(state.error) ? ASKED_AGAIN_MS : false),
  });
  const told = found.error ? undefined : found.data;
  return { check: told?.check, error: found.error, stale: asked.text !== text || found.isPlaceholderData || found.isPending, findings: told?.findings ?? NONE };
}

function findingsOf(check: DraftCheck, draft: Draft): Finding[] {
  const items = child(draft.root, "steps")?.items ?? [];
  const all = [...check.problems.map((one) => ({ ...one, text: one.reason, kind: undefined, hint: false })), ...check.hints.map((one) => ({ ...one, character: undefined, hint: true }))];
  return all.map(({ path: written, character, text, kind, hint }) => {
    const path = pathIn(draft, written);
    const [first, at] = path;
    const step = first === "steps" ? (typeof at === "number" ? stringOf(child(items[at], "id")) || undefined : undefined) : formOwner(draft, path);
    // What can't be chosen in the picture is told of the definition.
    const shown = first === "steps" && step === undefined ? [] : fieldAt(draft, path);
    return { hint, kind, path: written, character, text: shown.length === path.length ? text : `${text} (${written})`, step, place: nameOfPlace(draft.root, shown) };
  });
}

/** By the field that each stands at. */
export function toldOf(findings: readonly Finding[]): ReadonlyMap<string, Told> {
  const told = new Map<string, Told>();
  for (const { place, text, hint } of findings) {
    const { problems, hints } = told.get(place) ?? NOTHING_TOLD;
    told.set(place, hint ? { problems, hints: [...hints, text] } : { problems: [...problems, text], hints });
  }
  return told;
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
