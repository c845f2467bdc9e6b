// Of what a form for people consists (`metadata.forms[stepId]`), as the language's own fields are told: the part of JSON
// Schema that the page of tasks knows.
import { insert, type Node, nodeAt, type Path, parse, remove, rename, set } from "./json";
import type { Schema } from "./language";

const TEXT: Schema = { type: "string" };
const NUMBER: Schema = { type: "number", only: ["number", "integer"] };
const LENGTH: Schema = { type: "integer", only: ["string"] };
const TYPE: Schema = { type: "string", enum: ["string", "number", "integer", "boolean", "array", "object"] };
const FORMAT: Schema = { type: "string", enum: ["date"], only: ["string"] };
const REQUIRED: Schema = { type: "array", items: { type: "string", format: "field-name" } };
const FORM_FIELD: Schema = {
  type: "object",
  default: { title: "", type: "string" },
  properties: {
    title: TEXT,
    type: TYPE,
    description: TEXT,
    enum: { type: "array", items: { format: "template" }, only: ["string", "number", "integer"] },
    format: FORMAT,
    minimum: NUMBER,
    maximum: NUMBER,
    minLength: LENGTH,
    maxLength: LENGTH,
    pattern: { type: "string", only: ["string"] },
    default: {},
    properties: { only: ["object"] },
    required: { ...REQUIRED, only: ["object"] },
    items: { only: ["array"], type: "object", properties: { title: TEXT, type: TYPE, enum: { type: "array", items: { format: "template" } }, format: FORMAT, properties: { only: ["object"] }, required: { ...REQUIRED, only: ["object"] } }, description: "Of a list: what each of it is." },
  },
};
export const FORM: Schema = {
  type: "object",
  default: { schema: { type: "object", properties: { answer: { title: "Answer", type: "string" } } } },
  properties: {
    summary: { type: "string", format: "expression", description: "Names the task in the list." },
    schema: {
      type: "object",
      properties: {
        type: { type: "string", enum: ["object"] },
        properties: { type: "object", additionalProperties: FORM_FIELD, description: "The fields, in this order.", ticked: true },
        required: { ...REQUIRED, ticked: true },
      },
      required: ["type"],
    },
  },
};

const neededOf = (field: Path): Path => [...field.slice(0, -2), "required"];

/** Of a list of fields that are needed: those that are beside it and not in it, but for the one at `except`. */
export function notYetNeeded(root: Node, list: Path, except?: number): string[] {
  const taken = new Set(nodeAt(root, list)?.items?.flatMap((one, at) => (at === except ? [] : [one.value])));
  return (nodeAt(root, [...list.slice(0, -1), "properties"])?.members ?? []).flatMap(({ key }) => (taken.has(key) ? [] : [key]));
}

/** Where a field stands in the list of those that are needed; -1 where it is not in it. */
function placeOf(root: Node, field: Path): number {
  return nodeAt(root, neededOf(field))?.items?.findIndex((one) => one.value === field.at(-1)) ?? -1;
}

export function isNeeded(root: Node, field: Path): boolean {
  return placeOf(root, field) >= 0;
}

export function need(text: string, field: Path, needed: boolean): string {
  const root = parse(text);
  const [list, at] = [neededOf(field), placeOf(root, field)];
  const count = nodeAt(root, list)?.items?.length ?? 0;
  if (needed) return at < 0 ? insert(text, list, count, field.at(-1)) : text;
  return at < 0 ? text : remove(text, count === 1 ? list : [...list, at]);
}

/** Another name, also among those that are needed. */
export function renameField(text: string, field: Path, to: string): string {
  const [done, at] = [rename(text, field, to), placeOf(parse(text), field)];
  return done === text || at < 0 ? done : set(done, [...neededOf(field), at], to);
}
