// What several places ask the engine for under one key: by a page, and before that page is drawn.
import { infiniteQueryOptions, type QueryClient, queryOptions } from "@tanstack/react-query";
import { pretty } from "../modeller/json";
import { engine, type InstanceState } from "./client";

export const ME = queryOptions({ queryKey: ["me"], queryFn: ({ signal }) => engine.me(signal), staleTime: Number.POSITIVE_INFINITY });

export function stateOf(id: string) {
  return queryOptions({ queryKey: ["state", id], queryFn: ({ signal }) => engine.state(id, signal) });
}

/** What moved: with it, what was read of the instance is read again. */
export function markOf(state: InstanceState): string {
  return [state.instance.status, ...state.tokens.map((token) => `${token.id} ${token.state} ${token.attempt}`), state.timers.length, state.signals].join("|");
}

/** What was read of an instance as it stood before is not kept for long: one that goes on has another mark each second. */
export const MARKED_KEPT_MS = 30_000;

export function historyOf(id: string, mark: string | undefined) {
  return infiniteQueryOptions({
    gcTime: MARKED_KEPT_MS,
    queryKey: ["history", id, mark],
    queryFn: ({ pageParam, signal }) => engine.history(id, pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
  });
}

/** A version never changes. */
export function versionOf(id: string | undefined, version: number | undefined) {
  return queryOptions({ queryKey: ["definition", id, version], queryFn: ({ signal }) => engine.definition(id!, version, signal), staleTime: Number.POSITIVE_INFINITY });
}

/** The newest where no version is asked for. */
export function shownOf(id: string, asked: number | undefined) {
  return queryOptions({ queryKey: ["definition", id, asked ?? "latest"], queryFn: ({ signal }) => engine.definition(id, asked, signal) });
}

export function textOf(id: string | undefined, version: number | undefined) {
  return queryOptions({
    queryKey: ["definition text", id, version],
    queryFn: async ({ signal }) => {
      const text = await engine.definitionText(id!, version, signal);
      return { text: pretty(text, ["version"]), version: (JSON.parse(text) as { version: number }).version };
    },
    staleTime: Number.POSITIVE_INFINITY,
  });
}

/** Of an instance that is about to be shown, each as soon as what it depends on is known. */
export async function askForInstance(queries: QueryClient, id: string): Promise<void> {
  const state = await queries.fetchQuery(stateOf(id));
  await Promise.all([queries.prefetchQuery(versionOf(state.instance.definitionId, state.instance.definitionVersion)), queries.prefetchInfiniteQuery(historyOf(id, markOf(state)))]);
}
