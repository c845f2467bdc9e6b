// Two versions of a definition side by side: which steps came, went or changed, and one graph with all of both, by which
// both are laid out: what did not change stands at the same place in either.
import type { Definition, Step } from "../api/client";
import { type Edge, edgesOf } from "./edges";
import type { Layout } from "./layout";
import type { Note } from "./picture";

export interface StepChange {
  id: string;
  name: string;
  how: "added" | "removed" | "changed" | "renamed";
  /** Of a renamed step, the id that it had. */
  before?: string;
  /** The fields that differ. */
  fields: string[];
}

const NEVER_COMPARED = new Set(["id"]);

export function changesOf(before: Definition, after: Definition): StepChange[] {
  const old = new Map(before.steps.map((step) => [step.id, step]));
  const now = new Map(after.steps.map((step) => [step.id, step]));
  const gone = before.steps.filter((step) => !now.has(step.id));
  const renamed = new Map<string, Step>();
  for (const step of after.steps) {
    if (old.has(step.id)) continue;
    const same = gone.filter((one) => ![...renamed.values()].includes(one) && differing(one, step).length === 0);
    if (same.length === 1) renamed.set(step.id, same[0]!);
  }
  const found: StepChange[] = [];
  for (const step of after.steps) {
    const earlier = old.get(step.id);
    const name = step.name || step.id;
    if (earlier) {
      const fields = differing(earlier, step);
      if (fields.length) found.push({ id: step.id, name, how: "changed", fields });
    } else if (renamed.has(step.id)) found.push({ id: step.id, name, how: "renamed", before: renamed.get(step.id)!.id, fields: ["id"] });
    else found.push({ id: step.id, name, how: "added", fields: [] });
  }
  const kept = new Set([...renamed.values()].map((step) => step.id));
  for (const step of gone) if (!kept.has(step.id)) found.push({ id: step.id, name: step.name || step.id, how: "removed", fields: [] });
  return found;
}

function differing(a: Step, b: Step): string[] {
  const [one, two] = [a as Record<string, unknown>, b as Record<string, unknown>];
  const names = new Set([...Object.keys(one), ...Object.keys(two)]);
  // The order of conditions and transformations is their meaning, and JSON text keeps it.
  return [...names].filter((name) => !NEVER_COMPARED.has(name) && JSON.stringify(one[name]) !== JSON.stringify(two[name]));
}

/** How many steps came, went and changed, in one line. */
export function summaryOf(changes: readonly StepChange[]): string {
  const count = (how: StepChange["how"]) => changes.filter((one) => one.how === how).length || "none";
  const [added, renamed] = [count("added"), count("renamed")];
  return [`${added === "none" ? "no step" : added === 1 ? "1 step" : `${added} steps`} added`, `${count("changed")} changed`, ...(renamed === "none" ? [] : [`${renamed} renamed`]), `${count("removed")} removed`].join(", ");
}

export interface Line {
  sign: "-" | "+";
  text: string;
}

/** What a change says, line by line: of a step that was changed what it was and is, of one that came the ways that depend on something. */
export function linesOf(change: StepChange, before: Definition, after: Definition): Line[] {
  const [was, is] = [stepOf(before, change.before ?? change.id), stepOf(after, change.id)];
  if (change.how === "added") return waysOut(is).map((text) => ({ sign: "+", text }));
  if (change.how === "renamed") return [{ sign: "-", text: `id ${change.before}` }, { sign: "+", text: `id ${change.id}` }];
  if (change.how === "removed") return [];
  return change.fields.flatMap((field): Line[] => {
    const [old, now] = field === "conditionalNextSteps" ? [waysOut(was), waysOut(is)] : [saidOf(was, field), saidOf(is, field)];
    // Where the order alone is another one, all of it is told.
    const moved = old.length === now.length && old.every((text) => now.includes(text));
    return [
      ...old.filter((text) => moved || !now.includes(text)).map((text): Line => ({ sign: "-", text })),
      ...now.filter((text) => moved || !old.includes(text)).map((text): Line => ({ sign: "+", text })),
    ];
  });
}

function stepOf(definition: Definition, id: string): Step | undefined {
  return definition.steps.find((one) => one.id === id);
}

function waysOut(step: Step | undefined): string[] {
  return Object.entries(step?.conditionalNextSteps ?? {}).map(([condition, to]) => `${condition === "true" ? "otherwise" : condition} → ${to}`);
}

function saidOf(step: Step | undefined, field: string): string[] {
  const value = (step as Record<string, unknown> | undefined)?.[field];
  return value === undefined ? [] : [`${field} ${typeof value === "string" ? value : JSON.stringify(value, null, 1)}`];
}

/** What both are laid out by. */
export interface Union {
  /** The later one, with the steps that went at the places after which they stood. What has another id now stands there once. */
  definition: Definition;
  /** All ways of both, by the ids of the steps above. */
  edges: Edge[];
  /** Of the steps that have another id now: the old one's ids by the new ones'. */
  renamed: ReadonlyMap<string, string>;
}

export function unionOf(before: Definition, after: Definition, changes: readonly StepChange[]): Union {
  const now = new Set(after.steps.map((step) => step.id));
  const renamed = new Map(changes.flatMap((one) => (one.before === undefined ? [] : [[one.id, one.before]])));
  const name = naming(renamed);
  const steps = [...after.steps];
  let at = 0;
  for (const step of before.steps) {
    const id = name(step.id);
    const place = steps.findIndex((one) => one.id === id);
    if (place >= 0) at = place + 1;
    else if (!now.has(id)) steps.splice(at++, 0, step);
  }
  const ways = new Map([...edgesOf(after), ...edgesOf(before).map((edge) => ({ ...edge, from: name(edge.from), to: name(edge.to) }))].map((edge) => [keyOf(edge), edge]));
  return { definition: { ...after, steps }, edges: [...ways.values()].map((edge, at) => ({ ...edge, id: `e${at}` })), renamed };
}

function naming(renamed: ReadonlyMap<string, string>): (id: string) => string {
  const names = new Map([...renamed].map(([now, was]) => [was, now]));
  return (id) => names.get(id) ?? id;
}

function keyOf({ from, to, kind, label }: Edge): string {
  return JSON.stringify([from, to, kind, label]);
}

/** Of the layout of a union what one of the two has, as it has it; `renamed` of the old one only. */
export function halfOf(layout: Layout, own: Definition, renamed: ReadonlyMap<string, string> = new Map()): Layout {
  const name = naming(renamed);
  const boxes = new Map(layout.nodes.map((node) => [node.step.id, node]));
  const ways = new Map(layout.edges.map((way) => [keyOf(way.edge), way]));
  return {
    ...layout,
    nodes: own.steps.flatMap((step) => {
      const box = boxes.get(name(step.id));
      return box ? [{ ...box, step }] : [];
    }),
    edges: edgesOf(own).flatMap((edge) => {
      const way = ways.get(keyOf({ ...edge, from: name(edge.from), to: name(edge.to) }));
      return way ? [{ ...way, edge }] : [];
    }),
  };
}

export function wordOf(change: StepChange): string {
  if (change.how === "renamed") return `renamed, was ${change.before}`;
  return change.how === "changed" ? `changed: ${change.fields.join(", ")}` : change.how;
}

/** What either picture says of its steps, by its own ids; the old one also how many instances stand there (`open`). */
export function notesOf(changes: readonly StepChange[], open: ReadonlyMap<string, number> = new Map()): { before: Map<string, Note>; after: Map<string, Note> } {
  const note = (change: StepChange): Note => ({ look: change.how === "renamed" ? "changed" : change.how, mark: change.how, word: wordOf(change) });
  const before = new Map(changes.filter((one) => one.how !== "added").map((one) => [one.before ?? one.id, note(one)]));
  for (const [id, number] of open) {
    const there = before.get(id);
    before.set(id, { ...there, open: number.toLocaleString("en"), word: [`${number.toLocaleString("en")} open`, ...(there ? [there.word] : [])].join(", ") });
  }
  return { before, after: new Map(changes.filter((one) => one.how !== "removed").map((one) => [one.id, note(one)])) };
}
