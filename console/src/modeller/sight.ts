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

/** Those of them that are drawn: what was before, and so many of the new ones a frame. */
export function useSlices<T>(all: readonly T[], idOf: (one: T) => string, sliceMax: number): readonly T[] {
  const known = useRef<ReadonlySet<string>>(new Set());
  const [, drawMore] = useReducer((times: number) => times + 1, 0);
  let room = sliceMax;
  const drawn = all.filter((one) => known.current.has(idOf(one)) || room-- > 0);
  useLayoutEffect(() => {
    known.current = new Set(drawn.map(idOf));
    if (drawn.length === all.length) return;
    const frame = requestAnimationFrame(drawMore);
    return () => cancelAnimationFrame(frame);
  });
  return drawn.length === all.length ? all : drawn;
}
