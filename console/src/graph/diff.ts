// Two versions of a definition side by side: which steps came, went or changed, and one definition with all of them, so
// that what did not change stands still in the picture.
import type { Definition, Step } from "../api/client";

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

/** The later one, with the steps that went at the places after which they stood. What has another id now stands there once. */
export function unionOf(before: Definition, after: Definition): Definition {
  const now = new Set(after.steps.map((step) => step.id));
  const renamed = new Map(changesOf(before, after).flatMap((one) => (one.before === undefined ? [] : [[one.before, one.id]])));
  const steps = [...after.steps];
  let at = 0;
  for (const step of before.steps) {
    const id = renamed.get(step.id) ?? step.id;
    const place = steps.findIndex((one) => one.id === id);
    if (place >= 0) at = place + 1;
    else if (!now.has(id)) steps.splice(at++, 0, step);
  }
  return { ...after, steps };
}
