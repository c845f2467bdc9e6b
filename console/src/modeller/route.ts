// Edges between steps that somebody has put somewhere: out of the lower side, into the upper one, with right angles.
import type { Layout, Point } from "../graph/layout";
import type { Extent } from "../graph/viewport";
import type { DraftEdge } from "./draft";

const STUB = 14;
const AROUND = 24;

export function routed(edge: DraftEdge, boxes: ReadonlyMap<string, Extent>, edges: readonly DraftEdge[]): Layout["edges"][number] & { edge: DraftEdge } {
  const [from, to] = [boxes.get(edge.from)!, boxes.get(edge.to)!];
  const out = edges.filter((one) => one.from === edge.from);
  const into = edges.filter((one) => one.to === edge.to);
  const start = { x: from.x + (from.width * (out.indexOf(edge) + 1)) / (out.length + 1), y: from.y + from.height };
  const end = { x: to.x + (to.width * (into.indexOf(edge) + 1)) / (into.length + 1), y: to.y };
  const points = pathBetween(start, end, Math.max(from.x + from.width, to.x + to.width) + AROUND);
  if (edge.label === undefined) return { edge, points };
  const width = Math.min(edge.label.length, 26) * 6.3 + 14;
  const at = points[points.length > 4 ? 1 : 0]!;
  return { edge, points, label: { x: at.x - width / 2, y: at.y + STUB / 2, width } };
}

function pathBetween(start: Point, end: Point, right: number): Point[] {
  if (end.y >= start.y + 2 * STUB) {
    const middle = (start.y + end.y) / 2;
    return start.x === end.x ? [start, end] : [start, { x: start.x, y: middle }, { x: end.x, y: middle }, end];
  }
  const [below, above] = [start.y + STUB, end.y - STUB];
  return [start, { x: start.x, y: below }, { x: right, y: below }, { x: right, y: above }, { x: end.x, y: above }, end];
}
