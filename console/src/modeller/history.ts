// The texts that a draft has been, to go back to and forth, and where a draft is kept while nobody has uploaded it.
import { useCallback, useEffect, useReducer, useRef, useState } from "react";
import { noteDraft } from "../drafts";
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

/** Another tab has changed what is kept of a draft: into this text, or none (it was uploaded, or is as it was). */
export interface Clash {
  text: string | undefined;
  since: number;
}

/** `place`: under which key this browser keeps it; `base`: what it was before anybody changed it. */
export function useHistory(place: string, base: string) {
  const [history, change] = useReducer(changed, undefined, () => {
    const text = kept(place);
    return text === undefined || text === base ? opened(base) : { past: [base], now: text, future: [] };
  });
  const edit = useCallback((to: (now: string) => string, of?: string) => change({ do: "edit", to, of }), []);
  const keeping = useKeeping(place, base, history.now);
  return { history, change, edit, ...keeping };
}

/** Keeps a draft with each change, but never over what another tab has kept meanwhile: that is told, and one of the two is chosen. */
function useKeeping(place: string, base: string, now: string) {
  const own = now === base ? undefined : now;
  const [clash, setClash] = useState<Clash>();
  const [refused, setRefused] = useState(false);
  /** What was kept when this tab looked last, or put it there. */
  const [seen] = useState(() => ({ text: kept(place) }));
  const latest = useRef(own);
  latest.current = own;
  const isOurs = useCallback(() => {
    const there = kept(place);
    if (there === seen.text || there === latest.current) {
      seen.text = there;
      setClash(undefined);
      return true;
    }
    setClash((before) => (before && before.text === there ? before : { text: there, since: Date.now() }));
    return false;
  }, [place, seen]);
  const put = useCallback(() => {
    keep(place, latest.current);
    seen.text = kept(place);
    setRefused(seen.text !== latest.current);
  }, [place, seen]);
  useEffect(() => {
    if (isOurs()) put();
  }, [own, isOurs, put]);
  useEffect(() => {
    const elsewhere = ({ key }: StorageEvent) => (key === null || key === place) && isOurs();
    addEventListener("storage", elsewhere);
    return () => removeEventListener("storage", elsewhere);
  }, [place, isOurs]);
  /** This tab's text goes on, or the other's, which this one has then taken. */
  const settle = useCallback(
    (ours: boolean) => {
      seen.text = kept(place);
      setClash(undefined);
      if (ours) put();
    },
    [place, seen, put],
  );
  /** `isKept`: not where it is too long, or the browser has no room. */
  return { clash, settle, isKept: clash === undefined && !refused };
}

function kept(place: string): string | undefined {
  try {
    return localStorage.getItem(place) ?? undefined;
  } catch {
    return undefined; // a browser that keeps nothing
  }
}

export function keep(place: string, text: string | undefined): void {
  try {
    if (text === undefined || text.length > KEPT_MAX_CHARS) localStorage.removeItem(place);
    else {
      localStorage.setItem(place, text);
      noteDraft(place);
    }
  } catch {
    // It is full, or keeps nothing: the draft lives as long as the page.
  }
}
