// Edges between steps that somebody has put somewhere, or with sides of their own: out of one side, into another, with
// right angles.
import type { Layout, Point } from "../graph/layout";
import type { Extent } from "../graph/viewport";
import type { DraftEdge } from "./draft";
import type { Side } from "./handles";

const STUB = 14;
const AROUND = 24;
const AWAY: Record<Side, Point> = { top: { x: 0, y: -1 }, right: { x: 1, y: 0 }, bottom: { x: 0, y: 1 }, left: { x: -1, y: 0 } };

export function routed(edge: DraftEdge, boxes: ReadonlyMap<string, Extent>, edges: readonly DraftEdge[]): Layout["edges"][number] & { edge: DraftEdge } {
  const [from, to] = [boxes.get(edge.from)!, boxes.get(edge.to)!];
  const { from: out = "bottom", to: into = "top" } = edge.sides ?? {};
  const start = onSide(from, out, shareOf(edge, edges.filter((one) => one.from === edge.from && (one.sides?.from ?? "bottom") === out)));
  const end = onSide(to, into, shareOf(edge, edges.filter((one) => one.to === edge.to && (one.sides?.to ?? "top") === into)));
  const points = out === "bottom" && into === "top" ? downward(start, end, Math.max(from.x + from.width, to.x + to.width) + AROUND) : around(start, out, end, into);
  if (edge.label === undefined) return { edge, points };
  const width = Math.min(edge.label.length, 26) * 6.3 + 14;
  const at = points[points.length > 4 ? 1 : 0]!;
  return { edge, points, label: { x: at.x - width / 2, y: at.y + STUB / 2, width } };
}

/** Between 0 and 1: several on one side stand beside each other. */
function shareOf(edge: DraftEdge, beside: readonly DraftEdge[]): number {
  return (beside.indexOf(edge) + 1) / (beside.length + 1);
}

function onSide({ x, y, width, height }: Extent, side: Side, share: number): Point {
  if (side === "top" || side === "bottom") return { x: x + width * share, y: side === "top" ? y : y + height };
  return { x: side === "left" ? x : x + width, y: y + height * share };
}

function downward(start: Point, end: Point, right: number): Point[] {
  if (end.y >= start.y + 2 * STUB) {
    const middle = (start.y + end.y) / 2;
    return start.x === end.x ? [start, end] : [start, { x: start.x, y: middle }, { x: end.x, y: middle }, end];
  }
  const [below, above] = [start.y + STUB, end.y - STUB];
  return [start, { x: start.x, y: below }, { x: right, y: below }, { x: right, y: above }, { x: end.x, y: above }, end];
}

/** A little away from both sides, and from the one to the other with one corner or two. */
function around(start: Point, out: Side, end: Point, into: Side): Point[] {
  const away = ({ x, y }: Point, side: Side): Point => ({ x: x + AWAY[side].x * STUB, y: y + AWAY[side].y * STUB });
  const [a, b] = [away(start, out), away(end, into)];
  const [upright, upright2] = [AWAY[out].x === 0, AWAY[into].x === 0];
  const between = (one: number, other: number, direction: number) => (out !== into ? (one + other) / 2 : direction > 0 ? Math.max(one, other) : Math.min(one, other));
  if (upright && upright2) {
    const y = between(a.y, b.y, AWAY[out].y);
    return [start, { x: a.x, y }, { x: b.x, y }, end];
  }
  if (!upright && !upright2) {
    const x = between(a.x, b.x, AWAY[out].x);
    return [start, { x, y: a.y }, { x, y: b.y }, end];
  }
  return [start, a, upright ? { x: a.x, y: b.y } : { x: b.x, y: a.y }, b, end];
}
