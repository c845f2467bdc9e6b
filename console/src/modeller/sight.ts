// What of a draft is seen: which step has to be in sight after a change, and how much of it comes with a frame.
import { useLayoutEffect, useReducer, useRef } from "react";
import type { Draft } from "./draft";

/** The step that a change of the picture is about: of those that are new, moved or led elsewhere one that is selected,
 * else the last of them; where there is none, what is selected. */
export function changedStep(before: Draft, after: Draft, selected: readonly string[]): string | undefined {
  const [was, is] = [shapes(before), shapes(after)];
  const changed = [...is].flatMap(([id, shape]) => (was.get(id) === shape ? [] : [id]));
  return selected.findLast((id) => changed.includes(id)) ?? changed.at(-1) ?? selected.at(-1);
}

/** Of each step what its place in the picture depends on. */
function shapes({ definition, edges, pins }: Draft): Map<string, string> {
  const ways = new Map<string, unknown[]>();
  for (const { from, to, kind, label } of edges) ways.set(from, [...(ways.get(from) ?? []), [to, kind, label?.length]]);
  return new Map(definition.steps.map(({ id, type }) => [id, JSON.stringify([type, pins.get(id), ways.get(id)])]));
}

/** A frame that took longer was late. */
const LATE_MS = 20;
const SLICE_MIN = 2;

/** How many come with the next frame, after one that took so long. */
export function nextSlice(slice: number, frameMs: number, sliceMax: number): number {
  return frameMs > LATE_MS ? Math.max(SLICE_MIN, Math.floor(slice / 2)) : Math.min(sliceMax, slice + 1);
}

/** Those of them that are drawn: what was before, and with each frame more of the new ones, as many as leave it in time. */
export function useSlices<T>(all: readonly T[], idOf: (one: T) => string, sliceMax: number): readonly T[] {
  const known = useRef<ReadonlySet<string>>(new Set());
  const [, drawMore] = useReducer((times: number) => times + 1, 0);
  const slice = useRef({ size: Math.ceil(sliceMax / 2), at: 0 });
  let room = slice.current.size;
  const drawn = all.filter((one) => known.current.has(idOf(one)) || room-- > 0);
  useLayoutEffect(() => {
    known.current = new Set(drawn.map(idOf));
    if (drawn.length === all.length) {
      slice.current = { size: Math.ceil(sliceMax / 2), at: 0 };
      return;
    }
    const frame = requestAnimationFrame((at) => {
      const { size, at: before } = slice.current;
      slice.current = { size: before ? nextSlice(size, at - before, sliceMax) : size, at };
      drawMore();
    });
    return () => cancelAnimationFrame(frame);
  });
  return drawn.length === all.length ? all : drawn;
}
