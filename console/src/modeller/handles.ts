// At which sides of their steps edges begin and end, where the existing modeller of this language keeps it:
// `metadata.workflowModeller.edgeHandles`, an object of `{sourceHandle, targetHandle}` by the edge's name there. A name
// holds the ids of both ends; a handle, the word of its side.
import type { EdgeKind } from "../graph/edges";
import { child, type Node, nodeAt, type Path, stringOf } from "./json";

export type Side = "top" | "right" | "bottom" | "left";
export interface Sides {
  from?: Side;
  to?: Side;
}
interface Ends {
  from: string;
  to: string;
  kind: EdgeKind;
}

export const EDGE_HANDLES: Path = ["metadata", "workflowModeller", "edgeHandles"];
const SIDE = /top|right|bottom|left/i;

/** Of each name the edge that it is about: of those whose ids it holds, in this order, the one with the longest ids. Of
 * several between the same steps each name takes the next. */
export function handledEdges<E extends Ends>(root: Node, edges: readonly E[]): { name: string; edge: E; sides: Sides }[] {
  const met = new Map<string, number>();
  return (nodeAt(root, EDGE_HANDLES)?.members ?? []).flatMap(({ key: name, value }) => {
    let best: E[] = [];
    for (const edge of edges) {
      if (endsIn(name, edge) === undefined) continue;
      const longer = best[0] === undefined ? 1 : edge.from.length + edge.to.length - best[0].from.length - best[0].to.length;
      if (longer > 0) best = [edge];
      else if (longer === 0) best.push(edge);
    }
    const first = best[0];
    if (!first) return [];
    const between = `${first.from}\n${first.to}`;
    const turn = met.get(between) ?? 0;
    met.set(between, turn + 1);
    const [from, to] = [sideOf(child(value, "sourceHandle")), sideOf(child(value, "targetHandle"))];
    return [{ name, edge: best[Math.min(turn, best.length - 1)]!, sides: { ...(from ? { from } : {}), ...(to ? { to } : {}) } }];
  });
}

/** The name that an edge has once a step of its ends is called otherwise. */
export function renamedHandle(name: string, edge: Ends, before: string, after: string): string {
  const [from, to] = endsIn(name, edge)!;
  const id = (end: string) => (end === before ? after : end);
  return name.slice(0, from) + id(edge.from) + name.slice(from + edge.from.length, to) + id(edge.to) + name.slice(to + edge.to.length);
}

/** Where the ids of an edge's ends begin in a name. */
function endsIn(name: string, { from, to }: Ends): [from: number, to: number] | undefined {
  const at = name.indexOf(from);
  const then = at < 0 ? -1 : name.indexOf(to, at + from.length);
  return then < 0 ? undefined : [at, then];
}

function sideOf(node: Node | undefined): Side | undefined {
  return SIDE.exec(stringOf(node) ?? "")?.[0].toLowerCase() as Side | undefined;
}
