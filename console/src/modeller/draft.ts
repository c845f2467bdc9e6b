// What the picture shows of a draft. It may be of any shape, so nothing is taken for granted: what can't be drawn is left
// out, and what is wrong with it the engine says.
import type { Definition, Step } from "../api/client";
import type { Edge, EdgeKind } from "../graph/edges";
import type { Point } from "../graph/layout";
import { handledEdges, type Sides } from "./handles";
import { child, type Node, nodeAt, type Path, parse, stringOf, valueOf } from "./json";
import { usedBy } from "./language";

export interface DraftEdge extends Edge {
  /** Of the id of the step that it leads to. */
  path: Path;
  /** Of its steps, where somebody has put its ends. */
  sides?: Sides;
}
export interface Draft {
  text: string;
  root: Node;
  /** Its steps with ids that no step before has; enough of them to be drawn. */
  definition: Definition;
  edges: DraftEdge[];
  /** Where each step stands among `steps`. */
  places: Map<string, number>;
  /** Where somebody has put steps: top left corners. */
  pins: Map<string, Point>;
}

/** Where the existing modeller of this language keeps positions, and so does this one. */
export const LAYOUT: Path = ["metadata", "workflowModeller", "layout"];

/** Throws JsonProblem. */
export function readDraft(text: string): Draft {
  const root = parse(text);
  const places = new Map<string, number>();
  const steps: Step[] = [];
  const items = child(root, "steps")?.items ?? [];
  items.forEach((item, at) => {
    const id = stringOf(child(item, "id"));
    if (!id || places.has(id)) return;
    places.set(id, at);
    steps.push(drawn(item, id));
  });
  const edges = steps.flatMap((step) => edgesFrom(step, items[places.get(step.id)!]!, ["steps", places.get(step.id)!], places));
  const sides = new Map(handledEdges(root, edges, places.keys()).map((one) => [one.edge, one.sides]));
  return {
    text,
    root,
    definition: { id: stringOf(child(root, "id")) ?? "", name: stringOf(child(root, "name")) ?? "", steps },
    edges: edges.map((edge, at) => ({ ...edge, id: `e${at}`, ...(sides.has(edge) ? { sides: sides.get(edge)! } : {}) })),
    places,
    pins: pinsOf(root, places),
  };
}

/** The ids that more than one step has: where each of them stands. */
export function sharedIds(root: Node): Node[] {
  const all = new Map<string, Node[]>();
  for (const item of child(root, "steps")?.items ?? []) {
    const [id, text] = [child(item, "id"), stringOf(child(item, "id"))];
    if (!id || !text) continue;
    const same = all.get(text);
    if (same) same.push(id);
    else all.set(text, [id]);
  }
  return [...all.values()].filter((same) => same.length > 1).flat();
}

function drawn(item: Node, id: string): Step {
  const text = (name: string) => stringOf(child(item, name));
  const [message, items] = [stringOf(nodeAt(item, ["message", "name"])), stringOf(nodeAt(item, ["forEach", "items"]))];
  const [flowKey, undoneBy] = [text("flowKey"), stringOf(nodeAt(item, ["compensation", "jobType"]))];
  const priority = child(item, "priority")?.value as number | string | undefined;
  const jobType = text("jobType") ?? text("definitionId");
  return {
    id,
    name: text("name") ?? "",
    type: (text("type") ?? "") as Step["type"],
    ...(jobType ? { jobType } : {}),
    ...(message === undefined ? {} : { message: { name: message, correlationKey: "" } }),
    ...(items === undefined ? {} : { forEach: { items } }),
    ...(undoneBy === undefined ? {} : { compensation: { jobType: undoneBy } }),
    ...(flowKey === undefined ? {} : { flowKey }),
    ...(typeof priority === "number" || typeof priority === "string" ? { priority } : {}),
  };
}

function edgesFrom(step: Step, item: Node, path: Path, known: Map<string, number>): Omit<DraftEdge, "id">[] {
  const uses = new Set(usedBy(step.type));
  const found: Omit<DraftEdge, "id">[] = [];
  const add = (kind: EdgeKind, target: Node | undefined, way: Path, label?: string) => {
    const to = stringOf(target);
    if (to !== undefined && known.has(to)) found.push({ from: step.id, to, kind, path: [...path, ...way], ...(label === undefined ? {} : { label }) });
  };
  if (uses.has("nextStep")) add("next", child(item, "nextStep"), ["nextStep"]);
  if (uses.has("conditionalNextSteps"))
    for (const { key, value } of child(item, "conditionalNextSteps")?.members ?? [])
      add(key === "true" ? "else" : "cond", value, ["conditionalNextSteps", key], key === "true" ? "otherwise" : key);
  if (uses.has("parallelNextSteps")) child(item, "parallelNextSteps")?.items?.forEach((one, at) => add("par", one, ["parallelNextSteps", at]));
  if (uses.has("boundaryEvents"))
    child(item, "boundaryEvents")?.items?.forEach((event, at) => {
      const timer = stringOf(child(event, "type")) !== "ERROR";
      const beside = timer && child(event, "interrupting")?.value === false;
      const codes = child(event, "errorCodes")?.items?.map((one) => String(one.value)) ?? ["any error"];
      const label = timer ? (stringOf(child(event, "duration")) ?? "").replace(/^PT?/, "").toLowerCase() : codes.join(", ");
      add(!timer ? "error" : beside ? "timer" : "timer-int", child(event, "targetStepId"), ["boundaryEvents", at, "targetStepId"], label);
    });
  return found;
}

function pinsOf(root: Node, places: Map<string, number>): Map<string, Point> {
  const pins = new Map<string, Point>();
  for (const { key, value } of nodeAt(root, LAYOUT)?.members ?? []) {
    const [x, y] = [child(value, "x")?.value, child(value, "y")?.value];
    if (places.has(key) && Number.isFinite(x) && Number.isFinite(y)) pins.set(key, { x: x as number, y: y as number });
  }
  return pins;
}

/** Of a path as the engine writes it: `steps[1].conditionalNextSteps["a > 1"]`. */
export function pathOf(written: string): Path {
  const parts = written.matchAll(/\.?([A-Za-z_]\w*)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]/gy);
  return [...parts].map(([, name, index, key]) => (name !== undefined ? name : index !== undefined ? Number(index) : (JSON.parse(key!) as string)));
}

const KEY_MAX_CHARS = 80;

/** Of a path as the engine writes it, with the keys that stand there: the engine cuts those that are longer. */
export function pathIn({ root }: Pick<Draft, "root">, written: string): Path {
  let node: Node | undefined = root;
  return pathOf(written).map((key) => {
    const alike = typeof key === "string" && child(node, key) === undefined ? (node?.members ?? []).filter((one) => `${Array.from(one.key).slice(0, KEY_MAX_CHARS).join("")}…` === key) : [];
    const whole = alike.length === 1 ? alike[0]!.key : key;
    node = child(node, whole);
    return whole;
  });
}

interface Range {
  start: number;
  end: number;
}

/**
 * Where in a text something stands that the engine's path leads to; what is missing, where it should be. `at`: of an
 * expression there the character, counted from 0.
 */
export function rangeOf({ root, text }: Pick<Draft, "root" | "text">, written: string, at?: number): Range {
  const path = pathIn({ root }, written);
  let node = root;
  for (const key of path) {
    const inner = child(node, key);
    if (!inner) break;
    node = inner;
  }
  if (at === undefined) return node;
  const condition = path.at(-2) === "conditionalNextSteps" ? nodeAt(root, path.slice(0, -1))?.members?.find((one) => one.key === path.at(-1)) : undefined;
  return condition || node.kind === "string" ? characterIn(text, condition ?? node, at) : node;
}

const WRITTEN = /\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|\\u[\da-fA-F]{4}|\\.|[^]/gu;

/** Of a string as it is written what stands for a character of it, with the word that it is of. */
function characterIn(text: string, { start, end }: Range, at: number): Range {
  const [one] = [...text.slice(start + 1, end - 1).matchAll(WRITTEN)].slice(at, at + 1);
  if (!one) return { start: end - 1, end: end - 1 };
  const from = start + 1 + one.index;
  return { start: from, end: from + (/^\w+/.exec(text.slice(from, end - 1)) ?? one)[0].length };
}

/** The whole definition for what compares definitions: of references only those that lead somewhere. */
export function definitionOf(draft: Draft): Definition {
  const drawn = new Set(draft.places.values());
  const whole = valueOf(draft.root) as Definition;
  const steps: unknown[] = Array.isArray(whole.steps) ? whole.steps : [];
  return { ...whole, id: draft.definition.id, name: draft.definition.name, steps: steps.filter((_, at) => drawn.has(at)).map((step) => sound(step as Step, draft.places)) };
}

function sound(step: Step, known: ReadonlyMap<string, number>): Step {
  const leads = (id: unknown) => typeof id === "string" && known.has(id);
  const { nextStep, conditionalNextSteps, parallelNextSteps, boundaryEvents, ...rest } = step;
  const ways = Object.entries(conditionalNextSteps ?? {}).filter(([, to]) => leads(to));
  const events = Array.isArray(boundaryEvents) ? boundaryEvents.filter((event) => leads((event as { targetStepId?: unknown } | null)?.targetStepId)) : [];
  return {
    ...rest,
    ...(nextStep !== undefined && leads(nextStep) ? { nextStep } : {}),
    ...(ways.length ? { conditionalNextSteps: Object.fromEntries(ways) } : {}),
    ...(Array.isArray(parallelNextSteps) ? { parallelNextSteps: parallelNextSteps.filter(leads) } : {}),
    ...(events.length ? { boundaryEvents: events } : {}),
  };
}
