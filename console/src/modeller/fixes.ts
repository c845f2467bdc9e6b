// What can be done at once about what the engine says of a draft. Which problem it is the engine's path says, with what
// stands there; the words only where two problems have one path.
import { isBoundary } from "../graph/edges";
import { type Draft, pathIn, readDraft } from "./draft";
import { addCondition, addStep, connect, leadElsewhere, makeFirst, removeSteps, successorsOf } from "./edits";
import { child, nodeAt, type Path, remove, set, stringOf } from "./json";
import { COMMON, referencesOf, STEP, usedBy } from "./language";

export interface Fix {
  label: string;
  to: (text: string) => string;
}

export function fixesOf(finding: { path: string; text: string }, draft: Draft): Fix[] {
  const path = pathIn(draft, finding.path);
  const [first, place, field] = path;
  if (first === "steps" && place === undefined && finding.text.includes("END")) return [{ label: "Add an END", to: withEnd }];
  if (first !== "steps" || typeof place !== "number") return isUnknown(finding) ? [removal(path)] : [];
  const step = child(child(draft.root, "steps"), place);
  const id = stringOf(child(step, "id"));
  const type = stringOf(child(step, "type")) ?? "";
  if (!step) return [];
  if (field === undefined) return id !== undefined && finding.text.includes("reached") ? unreached(id, draft) : [];
  if (isUnknown(finding)) return [removal(path)];
  if (typeof field === "string" && path.length === 3 && field in STEP.properties && ![...COMMON, ...usedBy(type)].includes(field)) return [removal(path)];
  const wrong = referencesOf(step, ["steps", place]).find((one) => JSON.stringify(one.path) === JSON.stringify(path));
  if (wrong && !draft.places.has(wrong.to)) return dangling(path, wrong.to, draft);
  if (nodeAt(draft.root, path) === undefined) return path.length > 3 ? [] : missing(place, String(field), id, draft);
  if (field === "id" && id !== undefined && finding.text.includes("duplicate")) return [named(path, id, draft)];
  if (field === "conditionalNextSteps" && path.length === 3) return otherwise(place, draft);
  const fixed = inDays(stringOf(nodeAt(draft.root, path)) ?? "");
  return fixed === undefined ? [] : [{ label: `Change to ${fixed}`, to: (text) => set(text, path, fixed) }];
}

const YEAR_DAYS = 365;
const MONTH_DAYS = 30;

/** A duration in years or months, which have no fixed length, in days. */
function inDays(duration: string): string | undefined {
  const found = /^P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(T\w+)?$/.exec(duration);
  if (!found || (found[1] ?? found[2]) === undefined) return undefined;
  const [years, months, weeks, days] = found.slice(1, 5).map((one) => Number(one ?? 0)) as [number, number, number, number];
  return `P${YEAR_DAYS * years + MONTH_DAYS * months + 7 * weeks + days}D${found[5] ?? ""}`;
}

const isUnknown = (finding: { text: string }) => finding.text.startsWith("unknown field");

function removal(path: Path): Fix {
  return { label: "Remove it", to: (text) => remove(text, path) };
}

/** How many steps are offered to lead to one that none leads to. */
const OFFERED_MAX = 3;

function unreached(id: string, draft: Draft): Fix[] {
  const others = draft.definition.steps.filter((step) => step.id !== id);
  const ends = draft.definition.steps.find((step) => step.id === id)?.type === "END";
  const loose = others.filter((step) => step.type !== "END" && !leadsOn(step.id, draft));
  // Nothing goes on after an END: one more way out of a decision leads there.
  const open = loose.length || !ends ? loose : others.filter((step) => step.type === "DECISION");
  const after = open.length || ends ? undefined : before(id, draft);
  return [
    ...open.slice(0, OFFERED_MAX).map((step) => ({ label: `Lead ${step.id} to it`, to: (text: string) => connect(text, step.id, id) })),
    ...(after === undefined ? [] : [{ label: `Put it after ${after}`, to: (text: string) => putAfter(text, id, after) }]),
    ...(ends ? [] : [{ label: "Make it the start", to: (text: string) => makeFirst(text, id) }]),
    { label: "Delete the step", to: (text) => removeSteps(text, [id], successorsOf(text, [id])[0]) },
  ];
}

function leadsOn(id: string, draft: Draft): boolean {
  return draft.edges.some((edge) => edge.from === id && !isBoundary(edge));
}

/** The step before it in the text that has one way on; none to which it leads itself, which would be a circle. */
function before(id: string, draft: Draft): string | undefined {
  const at = draft.definition.steps.findIndex((step) => step.id === id);
  const behind = new Set([id]); // what is added is walked through, too
  for (const one of behind) for (const edge of draft.edges) if (edge.from === one) behind.add(edge.to);
  return draft.definition.steps
    .slice(0, at)
    .findLast((step) => !behind.has(step.id) && draft.edges.some((edge) => edge.from === step.id && edge.kind === "next" && edge.to !== id))?.id;
}

/** Into the way of the other one, whose end it takes over if it leads nowhere itself. */
function putAfter(text: string, id: string, after: string): string {
  const draft = readDraft(text);
  const way = draft.edges.find((edge) => edge.from === after && edge.kind === "next")!;
  return leadElsewhere(leadsOn(id, draft) ? text : connect(text, id, way.to), way, id);
}

function dangling(path: Path, to: string, draft: Draft): Fix[] {
  const near = nearest(to, [...draft.places.keys()]);
  const out = path.at(-1) === "targetStepId" ? path.slice(0, -1) : path;
  return [...(near === undefined ? [] : [{ label: `Lead it to ${near}`, to: (text: string) => set(text, path, near) }]), { label: out === path ? "Remove it" : "Remove the event", to: (text) => remove(text, out) }];
}

function missing(place: number, field: string, id: string | undefined, draft: Draft): Fix[] {
  const path: Path = ["steps", place, field];
  const end = endOf(draft);
  switch (field) {
    case "id":
      return [named(path, "step", draft)];
    case "name":
    case "jobType":
      return id === undefined ? [] : [{ label: `Call it ${id}`, to: (text) => set(text, path, id) }];
    case "nextStep":
      return end === undefined ? [{ label: "Add an END", to: withEnd }] : [{ label: `Lead it to ${end}`, to: (text) => set(text, path, end) }];
    case "conditionalNextSteps":
      return otherwise(place, draft);
    case "joinStep":
      return [
        {
          label: "Add a join",
          to: (text) => {
            const made = addStep(text, "JOIN_GATEWAY");
            const joined = set(made.text, path, made.id);
            return end === undefined ? joined : connect(joined, made.id, end);
          },
        },
      ];
    default:
      return [];
  }
}

function otherwise(place: number, draft: Draft): Fix[] {
  const end = endOf(draft);
  return end === undefined ? [] : [{ label: `Otherwise to ${end}`, to: (text) => addCondition(text, place, end) }];
}

function named(path: Path, id: string, draft: Draft): Fix {
  let free = `${id}-2`;
  for (let number = 3; draft.places.has(free); number++) free = `${id}-${number}`;
  return { label: `Give it the id ${free}`, to: (text) => set(text, path, free) };
}

function endOf(draft: Draft): string | undefined {
  return draft.definition.steps.find((step) => step.type === "END")?.id;
}

/** What leads nowhere leads to a new END. */
function withEnd(text: string): string {
  const made = addStep(text, "END");
  const { definition, edges } = readDraft(made.text);
  const loose = definition.steps.filter((step) => step.id !== made.id && !edges.some((edge) => edge.from === step.id && !isBoundary(edge)));
  return loose.reduce((done, step) => connect(done, step.id, made.id), made.text);
}

/** The id that a mistyped one was meant to be; none that is too far from it. */
function nearest(wrong: string, ids: readonly string[]): string | undefined {
  const [best] = ids.map((id) => ({ id, far: distance(wrong.toLowerCase(), id.toLowerCase()) })).sort((a, b) => a.far - b.far);
  return best && best.far <= Math.max(2, wrong.length / 3) ? best.id : undefined;
}

function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, at) => at);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) next.push(Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + Number(a[i - 1] !== b[j - 1])));
    row = next;
  }
  return row[b.length]!;
}
