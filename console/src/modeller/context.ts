// What every field of a panel needs of the draft that it is in.
import { createContext, useContext } from "react";
import type { Draft } from "./draft";

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
}

export const EditingContext = createContext<Editing | undefined>(undefined);

export function useEditing(): Editing {
  return useContext(EditingContext)!;
}
