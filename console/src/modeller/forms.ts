// Of what a form for people consists (`metadata.forms[stepId]`), as the language's own fields are told: the part of JSON
// Schema that the page of tasks knows.
import type { Schema } from "./language";

const TEXT: Schema = { type: "string" };
const NUMBER: Schema = { type: "number", only: ["number", "integer"] };
const LENGTH: Schema = { type: "integer", only: ["string"] };
const TYPE: Schema = { type: "string", enum: ["string", "number", "integer", "boolean", "array", "object"] };
const FORMAT: Schema = { type: "string", enum: ["date"], only: ["string"] };
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
    required: { type: "array", items: TEXT, only: ["object"] },
    items: { only: ["array"], type: "object", properties: { title: TEXT, type: TYPE, enum: { type: "array", items: { format: "template" } }, format: FORMAT, properties: { only: ["object"] } }, description: "Of a list: what each of it is." },
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
        properties: { type: "object", additionalProperties: FORM_FIELD, description: "The fields, in this order." },
        required: { type: "array", items: TEXT },
      },
      required: ["type"],
    },
  },
};
