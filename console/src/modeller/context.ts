// What every field of a panel needs of the draft that it is in.
import { createContext, useContext, useEffect, useSyncExternalStore } from "react";
import type { Draft } from "./draft";
import type { Path } from "./json";
import { nameOfPlace } from "./places";

export interface Editing {
  draft: Draft;
  /** `of`: edits of one thing are one step back. */
  edit: (to: (now: string) => string, of?: string) => void;
  /** What expressions may say: variables, then functions. */
  words: readonly Word[];
  /** JSON text of the variables that expressions are tried with. */
  variables: string;
  /** Paths, as JSON, at which the engine finds something amiss. */
  flawed: ReadonlySet<string>;
  /** By the field that it stands at (`nameOfPlace`). */
  told: ReadonlyMap<string, Told>;
}
/** What the engine says of a field. Hints are not amiss. */
export interface Told {
  problems: readonly string[];
  hints: readonly string[];
}
export interface Word {
  name: string;
  /** What it is, in a few words. */
  note: string;
  call: boolean;
  /** What it gives, with an example. */
  help?: string;
  /** Stands after a dot only: a method of dates or durations. */
  method?: boolean;
  /** A word of the language: `and`, `true`. */
  operator?: boolean;
}

export const EditingContext = createContext<Editing | undefined>(undefined);

export function useEditing(): Editing {
  return useContext(EditingContext)!;
}

export const NOTHING_TOLD: Told = { problems: [], hints: [] };

/** What the engine says of the field at a path, and the name of its place. */
export function useTold(path: Path): Told & { place: string } {
  const { draft, told } = useEditing();
  const place = nameOfPlace(draft.root, path);
  return { place, ...(told.get(place) ?? NOTHING_TOLD) };
}

// How many fields hold what the text has not: half typed, or nothing that it could take.
let untaken = 0;
const hearers = new Set<() => void>();

function count(by: number): void {
  untaken += by;
  for (const hear of hearers) hear();
}

function heard(hear: () => void): () => void {
  hearers.add(hear);
  return () => void hearers.delete(hear);
}

export function useUntaken(isUntaken: boolean): void {
  useEffect(() => {
    if (!isUntaken) return;
    count(1);
    return () => count(-1);
  }, [isUntaken]);
}

/** Whether a field holds what the text has not. */
export function useAnyUntaken(): boolean {
  return useSyncExternalStore(heard, () => untaken > 0);
}
