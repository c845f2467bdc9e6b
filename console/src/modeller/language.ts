// The language of definitions, as the engine's parser has it (language.json is made of the engine's OpenAPI document):
// which fields there are, of what form, and which type of step uses and needs which.
import language from "./language.json";
import type { Node, Path } from "./json";

export interface Schema {
  type?: "string" | "integer" | "number" | "boolean" | "object" | "array";
  format?: "step-id" | "field-name" | "expression" | "template" | "duration";
  enum?: string[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  additionalProperties?: Schema | boolean;
  propertyNames?: Schema;
  description?: string;
  /** It counts in objects whose `type` is one of these; without, in those that its description begins with. */
  only?: string[];
  /** What a new one is. */
  default?: unknown;
  /** Of an object: which of its names are needed the list `required` beside it says, and a tick at each. Of that list: it shows only what has no tick. */
  ticked?: boolean;
}

export const STEP = language.step as unknown as Schema & { properties: Record<string, Schema> };
export const DEFINITION = language.definition as unknown as Schema & { properties: Record<string, Schema> };
const TYPES = language.step["x-step-types"] as Record<string, { uses: string[]; needs: string[] }>;
export const STEP_TYPES = Object.keys(TYPES);
/** What a step of every type has. */
export const COMMON = ["id", "name", "type", "description"];

/** The fields that count for a type; all of them for one that is unknown. */
export function usedBy(type: string): string[] {
  return TYPES[type]?.uses ?? Object.keys(STEP.properties).filter((name) => !COMMON.includes(name));
}

export function neededBy(type: string): string[] {
  return TYPES[type]?.needs ?? [];
}

/** Whether a field counts in an object of this type. */
export function countsFor(field: Schema, type: string | undefined): boolean {
  const told = /^`([A-Z]+)`/.exec(field.description ?? "")?.[1];
  const only = field.only ?? (told === undefined ? undefined : [told]);
  return only === undefined || type === undefined || only.includes(type);
}

export interface Reference {
  path: Path;
  to: string;
}

/** All places of a step that name steps, also in fields that its type does not use. */
export function referencesOf(step: Node, path: Path): Reference[] {
  return found(step, STEP, path);
}

function found(node: Node, schema: Schema, path: Path): Reference[] {
  if (schema.format === "step-id") return node.kind === "string" && node.value !== "" ? [{ path, to: node.value as string }] : [];
  const items = schema.items;
  if (items && node.items) return node.items.flatMap((one, at) => found(one, items, [...path, at]));
  return (node.members ?? []).flatMap(({ key, value }) => {
    const own = schema.properties?.[key] ?? schema.additionalProperties;
    return typeof own === "object" ? found(value, own, [...path, key]) : [];
  });
}
