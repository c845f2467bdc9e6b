// One long poll per page tells what has changed; a tab that nobody sees does not ask.
import { useEffect, useRef } from "react";
import { engine } from "./api/client";

const AGAIN_MS = 2_000;

export interface Told {
  changed: string[];
  /** Instances were started that are newer than `newerThan`. */
  newer: boolean;
  /** The first answer tells of all. */
  first: boolean;
}

/** Nothing is watched while both are empty. */
export function useWatch(instances: string[], newerThan: string | undefined, told: (news: Told) => void): void {
  const latest = useRef(told);
  latest.current = told;
  const ids = instances.join(",");
  useEffect(() => {
    if (ids === "" && newerThan === undefined) return;
    const gone = new AbortController();
    void follow(ids, newerThan, gone.signal, (news) => latest.current(news));
    return () => gone.abort();
  }, [ids, newerThan]);
}

async function follow(instances: string, newerThan: string | undefined, gone: AbortSignal, tell: (news: Told) => void): Promise<void> {
  let since: string | undefined;
  while (!gone.aborted) {
    await seen(gone);
    if (gone.aborted) return;
    try {
      const found = await engine.watch({ since, instances, newerThan }, gone);
      if (found === undefined) continue; // nothing within its time
      const first = since === undefined;
      since = found.tag;
      if (found.changed.length > 0 || found.newer) tell({ changed: found.changed, newer: found.newer ?? false, first });
    } catch {
      await pause(AGAIN_MS, gone); // the engine is away, or this page is over
    }
  }
}

/** At once, or when the tab is shown again. */
function seen(gone: AbortSignal): Promise<void> {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const done = () => {
      document.removeEventListener("visibilitychange", done);
      gone.removeEventListener("abort", done);
      resolve();
    };
    document.addEventListener("visibilitychange", done);
    gone.addEventListener("abort", done);
  });
}

function pause(ms: number, gone: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    gone.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
