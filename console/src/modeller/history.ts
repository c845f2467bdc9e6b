// The texts that a draft has been, to go back to and forth, and where a draft is kept while nobody has uploaded it.
import { useCallback, useEffect, useReducer } from "react";
import { DRAFT_KEY } from "../drafts";
import { JsonProblem } from "./json";

export const STEPS_MAX = 500;
const CHARS_MAX = 30_000_000;
const KEPT_MAX_CHARS = 1_000_000;

export interface History {
  past: string[];
  now: string;
  future: string[];
  /** What the last edit was of: another one of the same is the same step back. */
  of?: string | undefined;
}
export type Change = { do: "edit"; to: (now: string) => string; of?: string | undefined } | { do: "undo" } | { do: "redo" } | { do: "open"; text: string };

export function opened(text: string): History {
  return { past: [], now: text, future: [] };
}

export function changed(history: History, change: Change): History {
  const { past, now, future } = history;
  switch (change.do) {
    case "open":
      return opened(change.text);
    case "edit": {
      const next = edited(now, change.to);
      if (next === now) return history;
      if (change.of !== undefined && change.of === history.of) return { ...history, now: next, future: [] };
      return { past: bounded([...past, now]), now: next, future: [], of: change.of };
    }
    case "undo":
      return past.length ? { past: past.slice(0, -1), now: past.at(-1)!, future: [now, ...future] } : history;
    case "redo":
      return future.length ? { past: [...past, now], now: future[0]!, future: future.slice(1) } : history;
  }
}

/** A text that is no JSON as it stands is only typed on: by any other edit it stays as it is. */
function edited(now: string, to: (now: string) => string): string {
  try {
    return to(now);
  } catch (error) {
    if (!(error instanceof JsonProblem)) throw error;
    return now;
  }
}

function bounded(texts: string[]): string[] {
  let from = Math.max(0, texts.length - STEPS_MAX);
  let chars = texts.slice(from).reduce((sum, text) => sum + text.length, 0);
  while (chars > CHARS_MAX && from < texts.length - 1) chars -= texts[from++]!.length;
  return texts.slice(from);
}

/** `place`: under which name this browser keeps it; `base`: what it was before anybody changed it. */
export function useHistory(place: string, base: string) {
  const [history, change] = useReducer(changed, undefined, () => {
    const text = kept(place);
    return text === undefined || text === base ? opened(base) : { past: [base], now: text, future: [] };
  });
  useEffect(() => keep(place, history.now === base ? undefined : history.now), [place, base, history.now]);
  const edit = useCallback((to: (now: string) => string, of?: string) => change({ do: "edit", to, of }), []);
  return { history, change, edit };
}

function kept(place: string): string | undefined {
  try {
    return localStorage.getItem(DRAFT_KEY + place) ?? undefined;
  } catch {
    return undefined; // a browser that keeps nothing
  }
}

export function keep(place: string, text: string | undefined): void {
  try {
    if (text === undefined || text.length > KEPT_MAX_CHARS) localStorage.removeItem(DRAFT_KEY + place);
    else localStorage.setItem(DRAFT_KEY + place, text);
  } catch {
    // It is full, or keeps nothing: the draft lives as long as the page.
  }
}
