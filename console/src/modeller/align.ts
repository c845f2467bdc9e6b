// Steps in a row: where they have to stand so that their sides or middles are on one line, or their gaps are the same.
import type { Point } from "../graph/layout";
import type { Extent } from "../graph/viewport";

export const ALIGNMENTS = { left: "Left", centre: "Centre", right: "Right", top: "Top", middle: "Middle", bottom: "Bottom", across: "Spread across", down: "Spread down" } as const;
export type Alignment = keyof typeof ALIGNMENTS;

/** The first of them stays where it is; of those that are spread, the outermost do. */
export function aligned(boxes: ReadonlyMap<string, Extent>, how: Alignment): Map<string, Point> {
  const all = [...boxes];
  const first = all[0]?.[1];
  if (!first) return new Map();
  if (how === "across") return new Map(spread(all, "x", "width"));
  if (how === "down") return new Map(spread(all, "y", "height"));
  const place: Record<Exclude<Alignment, "across" | "down">, (box: Extent) => Point> = {
    left: ({ y }) => ({ x: first.x, y }),
    centre: ({ y, width }) => ({ x: first.x + (first.width - width) / 2, y }),
    right: ({ y, width }) => ({ x: first.x + first.width - width, y }),
    top: ({ x }) => ({ x, y: first.y }),
    middle: ({ x, height }) => ({ x, y: first.y + (first.height - height) / 2 }),
    bottom: ({ x, height }) => ({ x, y: first.y + first.height - height }),
  };
  return new Map(all.map(([id, box]) => [id, place[how](box)]));
}

function spread(all: [string, Extent][], axis: "x" | "y", size: "width" | "height"): [string, Point][] {
  const ordered = [...all].sort(([, a], [, b]) => a[axis] - b[axis]);
  const [from, last] = [ordered[0]![1], ordered.at(-1)![1]];
  const sizes = ordered.reduce((sum, [, box]) => sum + box[size], 0);
  const gap = ordered.length < 2 ? 0 : (last[axis] + last[size] - from[axis] - sizes) / (ordered.length - 1);
  let at = from[axis];
  return ordered.map(([id, box]) => {
    const point = { x: box.x, y: box.y, [axis]: at };
    at += box[size] + gap;
    return [id, point];
  });
}
