// At which sides of their steps edges begin and end, where the existing modeller of this language keeps it:
// `metadata.workflowModeller.edgeHandles`, an object of `{sourceHandle, targetHandle}` by the edge's name there, such as
// `pay--boundary:0-->refuse`. Of another program's names those are taken that hold the ids of both ends; of its handles, the
// word of the side.
import { child, type Node, nodeAt, type Path, stringOf } from "./json";

export type Side = "top" | "right" | "bottom" | "left";
export interface Sides {
  from?: Side;
  to?: Side;
}
interface Ends {
  from: string;
  to: string;
  /** Of the id of the step that it leads to, in the definition. */
  path?: Path;
}

export const EDGE_HANDLES: Path = ["metadata", "workflowModeller", "edgeHandles"];
const SIDE = /top|right|bottom|left/i;
/** A longer name is of no edge. */
const NAME_MAX_CHARS = 2_000;
/** Of one id in a name. */
const PLACES_MAX = 20;

/** Of each name the edge that it is about: the one that is called so there; else, of those whose ids it holds, in this order, the one with the longest ids; of
 * these the one whose ids stand nearest. Of several between the same steps each name takes the next. */
export function handledEdges<E extends Ends>(root: Node, edges: readonly E[], ids: Iterable<string>): { name: string; edge: E; sides: Sides; ends: NameEnds }[] {
  const known = [...ids];
  const called = new Map(edges.toReversed().flatMap((edge) => namesOf(edge).map((name) => [name, edge] as const))); // the first of several
  const met = new Map<string, number>();
  return (nodeAt(root, EDGE_HANDLES)?.members ?? []).flatMap(({ key: name, value }) => {
    const handles = [stringOf(child(value, "sourceHandle")), stringOf(child(value, "targetHandle"))];
    const [from, to] = handles.map(sideOf);
    const sides = { ...(from ? { from } : {}), ...(to ? { to } : {}) };
    const own = called.get(name);
    if (own) return [{ name, edge: own, sides, ends: { from: { start: 0, end: own.from.length }, to: { start: name.length - own.to.length, end: name.length } } }];
    if (name.length > NAME_MAX_CHARS) return [];
    const stand = placesIn(name, known, handles);
    let best: { edge: E; ends: NameEnds }[] = [];
    for (const edge of edges) {
      const ends = endsIn(edge, stand);
      const better = ends && best[0] ? compare(best[0].ends, ends) : 1;
      if (ends && better > 0) best = [{ edge, ends }];
      else if (ends && better === 0) best.push({ edge, ends });
    }
    const first = best[0];
    if (!first) return [];
    const between = `${first.edge.from}\n${first.edge.to}`;
    const turn = met.get(between) ?? 0;
    met.set(between, turn + 1);
    return [{ name, ...best[Math.min(turn, best.length - 1)]!, sides }];
  });
}

/** As the existing modeller calls an edge. */
function namesOf({ from, to, path = [] }: Ends): string[] {
  const [, , field, key] = path;
  const kinds = field === "conditionalNextSteps" ? [`conditional:${key}`] : field === "boundaryEvents" ? [`boundary:${key}`] : field === "parallelNextSteps" ? ["parallel"] : ["sequential", "join-out"];
  return kinds.map((kind) => `${from}--${kind}-->${to}`);
}

/** The name that an edge has once a step of its ends is called otherwise. */
export function renamedHandle(name: string, { from, to }: NameEnds, before: string, after: string): string {
  const called = (end: Place) => (name.slice(end.start, end.end) === before ? after : name.slice(end.start, end.end));
  return name.slice(0, from.start) + called(from) + name.slice(from.end, to.start) + called(to) + name.slice(to.end);
}

/** Of an id in a name. */
interface Place {
  start: number;
  end: number;
}
interface NameEnds {
  from: Place;
  to: Place;
}

const LETTER = /[\p{L}\p{N}]/u;

/** Where each id stands in a name, as words of their own: `pay` is not in `repay`. One of the handles may follow at once. */
function placesIn(name: string, ids: readonly string[], handles: readonly (string | undefined)[]): Map<string, Place[]> {
  const found = new Map<string, Place[]>();
  for (const id of ids) {
    const places: Place[] = [];
    for (let start = name.indexOf(id); start >= 0 && places.length < PLACES_MAX; start = name.indexOf(id, start + 1)) {
      const end = start + id.length;
      const ends = !LETTER.test(name.charAt(end)) || handles.some((one) => one && name.startsWith(one, end));
      if (ends && !LETTER.test(name.charAt(start - 1))) places.push({ start, end });
    }
    if (places.length) found.set(id, places);
  }
  return found;
}

/** Where both ids stand nearest, neither as a part of a longer one. */
function endsIn(edge: Ends, stand: ReadonlyMap<string, readonly Place[]>): NameEnds | undefined {
  let best: NameEnds | undefined;
  for (const from of stand.get(edge.from) ?? [])
    for (const to of stand.get(edge.to) ?? []) {
      const ends = { from, to };
      if (to.start >= from.end && !isPart(from, to, stand) && !isPart(to, from, stand) && (!best || compare(best, ends) > 0)) best = ends;
    }
  return best;
}

/** Whether a longer id covers it that leaves room for the other. */
function isPart(one: Place, other: Place, stand: ReadonlyMap<string, readonly Place[]>): boolean {
  return [...stand.values()].some((places) =>
    places.some(({ start, end }) => start <= one.start && end >= one.end && end - start > one.end - one.start && (end <= other.start || start >= other.end)),
  );
}

/** Above 0 when the second has the longer ids, or as long ones that stand nearer. */
function compare(one: NameEnds, other: NameEnds): number {
  const length = ({ from, to }: NameEnds) => from.end - from.start + to.end - to.start;
  const gap = ({ from, to }: NameEnds) => to.start - from.end;
  return length(other) - length(one) || gap(one) - gap(other);
}

/** Of a handle without a word of its own: there, ways go from the right of a step to the left of the next; a condition's bears its text. */
function sideOf(handle: string | undefined): Side | undefined {
  if (handle === "in") return "left";
  if (handle === "out" || /^(branch|parallel):/.test(handle ?? "")) return "right";
  return SIDE.exec(handle ?? "")?.[0].toLowerCase() as Side | undefined;
}
