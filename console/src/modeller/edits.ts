// What people do to a draft: each edit takes a text and gives the next one, and touches nothing else.
import { isBoundary } from "../graph/edges";
import type { Point } from "../graph/layout";
import { type DraftEdge, LAYOUT, readDraft } from "./draft";
import { EDGE_HANDLES, handledEdges, renamedHandle } from "./handles";
import { child, insert, insertMember, move, type Node, nodeAt, type Path, parse, Raw, remove, rename, set, stringOf } from "./json";
import { referencesOf, usedBy } from "./language";

/** How ids and names of new steps begin. */
const NAMES: Record<string, [id: string, name: string]> = {
  SERVICE_TASK: ["task", "Service task"],
  USER_TASK: ["ask", "User task"],
  CALL_ACTIVITY: ["call", "Call"],
  COMPENSATE: ["undo", "Compensate"],
  DECISION: ["decide", "Decision"],
  TRANSFORMATION: ["set", "Transformation"],
  WAIT: ["wait", "Wait"],
  PARALLEL_GATEWAY: ["split", "Parallel block"],
  JOIN_GATEWAY: ["join", "Join"],
  END: ["end", "End"],
};
/** No type of step, but a pair of them: what is to be requested, and the job of the ready worker that does it. */
export const HTTP_REQUEST = "HTTP_REQUEST";
const OTHERWISE = "true";
/** By what these keep, beside the steps, by id of step. */
const KEYED_BY_STEP: Path[] = [["metadata", "forms"], LAYOUT];

export const EMPTY = `{
  "id": "new-workflow",
  "name": "New workflow",
  "steps": [
    {
      "id": "end",
      "name": "End",
      "type": "END"
    }
  ]
}
`;

const stepsOf = (root: Node): Node[] => child(root, "steps")?.items ?? [];

function idsOf(text: string): Set<string> {
  return new Set(stepsOf(parse(text)).flatMap((step) => stringOf(child(step, "id")) ?? []));
}

function freeId(base: string, taken: Set<string>): string {
  let id = base;
  for (let number = 2; taken.has(id); number++) id = `${base}-${number}`;
  taken.add(id);
  return id;
}

function template(type: string, id: string, next: string | undefined): Record<string, unknown> {
  const uses = usedBy(type);
  return {
    id,
    name: NAMES[type]?.[1] ?? id,
    type,
    jobType: type === "SERVICE_TASK" ? id : undefined,
    definitionId: type === "CALL_ACTIVITY" ? "" : undefined,
    transformations: type === "TRANSFORMATION" ? { name: "value" } : undefined,
    conditionalNextSteps: type === "DECISION" ? (next === undefined ? {} : { [OTHERWISE]: next }) : undefined,
    nextStep: uses.includes("nextStep") ? next : undefined,
  };
}

/** A new step after another one and wired in, or at the end. */
export function addStep(text: string, type: string, after?: string): { text: string; id: string } {
  const draft = readDraft(text);
  const place = after === undefined ? undefined : draft.places.get(after);
  const before = place === undefined ? undefined : stepsOf(draft.root)[place];
  const kind = stringOf(child(before, "type")) ?? "";
  // Before an END, behind anything else; what has its one way already is not cut off by an END.
  const next = before === undefined ? undefined : kind === "END" ? after : wayOnOf(before);
  const wired = before !== undefined && !(type === "END" && (next !== undefined || kind === "END"));
  const made = stepsOfType(type, idsOf(text), wired ? next : undefined);
  const id = made[0]!.id as string;
  let done = text;
  if (wired && before && place !== undefined) {
    if (kind === "END") done = redirect(done, after!, id);
    else done = leadTo(done, place, id);
  }
  let at = place === undefined ? stepsOf(draft.root).length : kind === "END" ? place : place + 1;
  for (const step of made) done = insert(done, ["steps"], at++, step);
  return { text: done, id };
}

/** A new step between the two that a way leads from and to. */
export function insertOnWay(text: string, type: string, way: DraftEdge): { text: string; id: string } {
  const { places } = readDraft(text);
  const made = stepsOfType(type, idsOf(text), way.to);
  const id = made[0]!.id as string;
  const at = places.get(way.from)! + 1;
  return { id, text: made.reduce((done, step, nth) => insert(done, ["steps"], at + nth, step), leadElsewhere(text, way, id)) };
}

/** A parallel gateway comes with two branches and a join, an HTTP request with the step that sets what it is. */
function stepsOfType(type: string, taken: Set<string>, next: string | undefined): Record<string, unknown>[] {
  if (type === HTTP_REQUEST) {
    const [set, request] = [freeId("set-request", taken), freeId("request", taken)];
    return [
      { ...template("TRANSFORMATION", set, request), name: "Set the request", transformations: { [request]: { method: "GET", url: "https://api.example/" } } },
      { ...template("SERVICE_TASK", request, next), name: "HTTP request", jobType: "http.request" },
    ];
  }
  const id = freeId(NAMES[type]?.[0] ?? "step", taken);
  if (type !== "PARALLEL_GATEWAY") return [template(type, id, next)];
  const [first, second, join] = [freeId("branch", taken), freeId("branch", taken), freeId("join", taken)];
  return [
    { ...template(type, id, undefined), parallelNextSteps: [first, second], joinStep: join },
    ...[first, second].map((branch) => ({ ...template("SERVICE_TASK", branch, join), name: "Branch" })),
    template("JOIN_GATEWAY", join, next),
  ];
}

/** The step that comes by default: the next one, what is left when no condition is true, the join of a block. */
function wayOnOf(step: Node): string | undefined {
  const uses = usedBy(stringOf(child(step, "type")) ?? "");
  if (uses.includes("nextStep")) return stringOf(child(step, "nextStep"));
  if (uses.includes("joinStep")) return stringOf(child(step, "joinStep"));
  return stringOf(child(step, "conditionalNextSteps")?.members?.at(-1)?.value);
}

/** All that leads to one step leads to another, and if instances began there, they begin at the other. */
function redirect(text: string, from: string, to: string): string {
  const paths = stepsOf(parse(text)).flatMap((step, at) => referencesOf(step, ["steps", at]).filter((one) => one.to === from));
  return paths.reduce((done, { path }) => set(done, path, to), text);
}

/** One more way out of a step; the one way of a step that has only one. */
function leadTo(text: string, place: number, to: string): string {
  const step = stepsOf(parse(text))[place];
  const path = ["steps", place];
  const uses = usedBy(stringOf(child(step, "type")) ?? "");
  if (uses.includes("nextStep")) return set(text, [...path, "nextStep"], to);
  if (uses.includes("parallelNextSteps")) return insert(text, [...path, "parallelNextSteps"], child(step, "parallelNextSteps")?.items?.length ?? 0, to);
  if (!uses.includes("conditionalNextSteps")) return text;
  return addCondition(text, place, to);
}

/** Before the one that is always true. */
export function addCondition(text: string, place: number, to: string): string {
  const path = ["steps", place, "conditionalNextSteps"];
  const keys = nodeAt(parse(text), path)?.members?.map((one) => one.key) ?? [];
  if (!keys.includes(OTHERWISE)) return insertMember(text, path, keys.length, OTHERWISE, to);
  return insertMember(text, path, keys.indexOf(OTHERWISE), newCondition(keys), to);
}

/** What a condition begins with: a way that is never taken. */
export function newCondition(keys: readonly string[]): string {
  let condition = "false";
  while (keys.includes(condition)) condition += " || false";
  return condition;
}

export function isNever(condition: string): boolean {
  return /^false( \|\| false)*$/.test(condition);
}

/** Draws a way from one step to another. The same text where none can begin. */
export function connect(text: string, from: string, to: string): string {
  const place = readDraft(text).places.get(from);
  return place === undefined ? text : leadTo(text, place, to);
}

export function disconnect(text: string, edge: Pick<DraftEdge, "path" | "kind">): string {
  return remove(text, isBoundary(edge) ? edge.path.slice(0, -1) : edge.path);
}

/** A way leads to another step. */
export function leadElsewhere(text: string, edge: DraftEdge, to: string): string {
  return set(withoutHandles(text, (one) => one.id === edge.id), edge.path, to);
}

/** A way begins at another step: a condition or an event goes there as it is, if steps of its type have such. */
export function beginElsewhere(text: string, edge: DraftEdge, from: string): string {
  const { root, places } = readDraft(text);
  const place = places.get(from);
  if (place === undefined || from === edge.from) return text;
  const [, , field, key] = edge.path;
  const uses = usedBy(stringOf(child(stepsOf(root)[place], "type")) ?? "");
  const there: Path = ["steps", place, field!];
  const held = nodeAt(root, there);
  const without = () => disconnect(withoutHandles(text, (one) => one.id === edge.id), edge);
  if (isBoundary(edge)) {
    const event = nodeAt(root, edge.path.slice(0, -1));
    if (!event || !uses.includes("boundaryEvents")) return text;
    return insert(without(), there, held?.items?.length ?? 0, new Raw(text.slice(event.start, event.end)));
  }
  if (edge.kind === "cond" && uses.includes("conditionalNextSteps") && !held?.members?.some((one) => one.key === key)) {
    const last = held?.members?.at(-1)?.key === OTHERWISE ? held.members.length - 1 : (held?.members?.length ?? 0);
    return insertMember(without(), there, last, String(key), edge.to);
  }
  const led = leadTo(without(), place, edge.to);
  return led === without() ? text : led;
}

export interface TimerFields {
  duration: string;
  interrupting: boolean;
}

/** The step, if timers and errors can hang on it. */
function hostAt(text: string, id: string): { place: number; step: Node } | undefined {
  const { root, places } = readDraft(text);
  const place = places.get(id);
  const step = place === undefined ? undefined : stepsOf(root)[place];
  return step && usedBy(stringOf(child(step, "type")) ?? "").includes("boundaryEvents") ? { place: place!, step } : undefined;
}

export function mayHang(text: string, id: string): boolean {
  return hostAt(text, id) !== undefined;
}

/** A timer or an error that hangs on a step and leads to another one; to none of them, to a new task that goes on where the step would have. The same text where none can hang. */
export function addBoundary(text: string, type: "TIMER" | "ERROR", id: string, to?: string, timer: TimerFields = { duration: "PT1H", interrupting: true }): string {
  const host = hostAt(text, id);
  if (host === undefined) return text;
  // What comes beside the step ends its branch: only one of them goes on.
  const beside = type === "TIMER" && !timer.interrupting;
  const task = to === undefined ? stepsOfType("SERVICE_TASK", idsOf(text), beside ? undefined : wayOnOf(host.step))[0]! : undefined;
  const targetStepId = to ?? task!.id;
  const event = { type, ...(type === "TIMER" ? timer : {}), targetStepId };
  const hung = insert(text, ["steps", host.place, "boundaryEvents"], child(host.step, "boundaryEvents")?.items?.length ?? 0, event);
  return task === undefined ? hung : insert(hung, ["steps"], host.place + 1, task);
}

/** Instances begin at this step; one that led nowhere leads to where they began. */
export function makeFirst(text: string, id: string): string {
  const { root, places, edges } = readDraft(text);
  const [place, first] = [places.get(id), stringOf(child(stepsOf(root)[0], "id"))];
  if (place === undefined || first === undefined || first === id) return text;
  const led = edges.some((edge) => edge.from === id && !isBoundary(edge)) ? text : leadTo(text, place, first);
  return move(led, ["steps", place], 0);
}

/** The steps to one of which a removed step's predecessors could lead. */
export function successorsOf(text: string, ids: readonly string[]): string[] {
  const found = new Set<string>();
  for (const edge of readDraft(text).edges) if (ids.includes(edge.from) && !ids.includes(edge.to) && !isBoundary(edge)) found.add(edge.to);
  return [...found];
}

/** Whether another step leads to one of these. */
export function isLedTo(text: string, ids: readonly string[]): boolean {
  return readDraft(text).edges.some((edge) => ids.includes(edge.to) && !ids.includes(edge.from));
}

/** Takes steps out. What led to them leads to `instead`, or no more anywhere. */
export function removeSteps(text: string, ids: readonly string[], instead: string | undefined): string {
  const { places } = readDraft(text);
  const first = stringOf(child(stepsOf(parse(text))[0], "id"));
  let done = withoutHandles(text, (edge) => ids.includes(edge.from) || ids.includes(edge.to));
  for (const id of ids) {
    if (instead !== undefined) done = redirect(done, id, instead);
    else for (const path of referencesTo(done, id)) done = remove(done, path);
    for (const keyed of KEYED_BY_STEP) done = remove(done, [...keyed, id]);
  }
  for (const place of ids.flatMap((id) => places.get(id) ?? []).sort((a, b) => b - a)) done = remove(done, ["steps", place]);
  // Instances begin at the first step.
  const entry = first !== undefined && ids.includes(first) && instead !== undefined ? readDraft(done).places.get(instead) : undefined;
  return entry === undefined ? done : move(done, ["steps", entry], 0);
}

/** What has to go with a step: the name or item that refers to it, of a boundary event the whole; the last first. */
function referencesTo(text: string, id: string): Path[] {
  const paths = stepsOf(parse(text)).flatMap((step, at) => referencesOf(step, ["steps", at]).filter((one) => one.to === id));
  return paths.map(({ path }) => (path[2] === "boundaryEvents" ? path.slice(0, 4) : path)).reverse();
}

const COME_WITH_STEP = /^(task|branch)(-\d+)?$/;

/** Whether a task's job type is one of those that come with a new step: nobody has chosen it. */
export function hasGivenJobType(step: Node): boolean {
  return stringOf(child(step, "type")) === "SERVICE_TASK" && COME_WITH_STEP.test(stringOf(child(step, "jobType")) ?? "");
}

/** As somebody renames it: a job type that came with the step goes with its id. */
export function renameStepAsTyped(text: string, from: string, to: string): string {
  const { root, places } = readDraft(text);
  const [place, done] = [places.get(from), renameStep(text, from, to)];
  const step = place === undefined ? undefined : stepsOf(root)[place];
  return done !== text && step && hasGivenJobType(step) && stringOf(child(step, "jobType")) === from ? set(done, ["steps", place!, "jobType"], to) : done;
}

/** Another id, and all that refers to it follows. The same text when it is taken. */
export function renameStep(text: string, from: string, to: string): string {
  const { places } = readDraft(text);
  const place = places.get(from);
  if (place === undefined || from === to || idsOf(text).has(to)) return text;
  let done = text;
  for (const { name, edge, ends } of handled(text)) if (edge.from === from || edge.to === from) done = rename(done, [...EDGE_HANDLES, name], renamedHandle(name, ends, from, to));
  done = redirect(done, from, to);
  done = set(done, ["steps", place, "id"], to);
  for (const keyed of KEYED_BY_STEP) done = rename(done, [...keyed, from], to);
  return done;
}

function handled(text: string) {
  const { root, edges, places } = readDraft(text);
  return handledEdges(root, edges, places.keys());
}

/** Forgets at which sides these edges begin and end. */
function withoutHandles(text: string, which: (edge: DraftEdge) => boolean): string {
  return handled(text).reduce((done, { name, edge }) => (which(edge) ? remove(done, [...EDGE_HANDLES, name]) : done), text);
}

/** Steps as JSON text, for another definition. */
export function copySteps(text: string, ids: readonly string[]): string {
  const { places } = readDraft(text);
  const items = stepsOf(parse(text));
  const chosen = ids.flatMap((id) => places.get(id) ?? []).sort((a, b) => a - b);
  return `[${chosen.map((place) => text.slice(items[place]!.start, items[place]!.end)).join(",\n")}]`;
}

/** Puts copied steps in. Ids that are taken change, and what they say of each other follows. Throws JsonProblem. */
export function pasteSteps(text: string, copied: string): { text: string; ids: string[] } {
  const taken = idsOf(text);
  let clip = `{"steps": ${copied.trim()}}`;
  const ids: string[] = [];
  for (const [id] of readDraft(clip).places) {
    const inside = new Set([...taken, ...idsOf(clip)]);
    const free = taken.has(id) ? freeId(id, inside) : id;
    clip = renameStep(clip, id, free);
    taken.add(free);
    ids.push(free);
  }
  const items = stepsOf(parse(clip)).filter((item) => item.kind === "object");
  const from = stepsOf(parse(text)).length;
  return { ids, text: items.reduce((done, item, at) => insert(done, ["steps"], from + at, new Raw(clip.slice(item.start, item.end))), text) };
}

/** Where somebody has put steps, in the order of the steps: whichever was put there first, the text is the same. */
export function pin(text: string, pins: ReadonlyMap<string, Point>): string {
  const { root, places } = readDraft(text);
  const there = (nodeAt(root, LAYOUT)?.members ?? []).map((one) => one.key);
  let done = text;
  for (const [id, { x, y }] of pins) {
    const later = there.findIndex((one) => places.get(one)! > places.get(id)!);
    const at = later < 0 ? there.length : later;
    done = insertMember(done, LAYOUT, at, id, { x: Math.round(x), y: Math.round(y) });
    if (!there.includes(id)) there.splice(at, 0, id);
  }
  return done;
}

/** Forgets where steps were put and edges began, and what held that if nothing else is in it. */
export function tidy(text: string): string {
  let done = remove(remove(text, LAYOUT), EDGE_HANDLES);
  for (const path of [LAYOUT.slice(0, 2), LAYOUT.slice(0, 1)]) if (nodeAt(parse(done), path)?.members?.length === 0) done = remove(done, path);
  return done;
}
