// What people see of a user task: `metadata.forms[stepId]`, which engines ignore otherwise. Edited by the same editors as
// the language's fields, and shown as the page of tasks will show it.
import { useMemo, useState } from "react";
import { Fields, initial, problemsOf, type Schema as FormSchema, type Values } from "../parts/form";
import { useEditing } from "./context";
import { Field } from "./fields";
import { nodeAt, type Path, valueOf } from "./json";
import type { Schema } from "./language";

const TEXT: Schema = { type: "string" };
const NUMBER: Schema = { type: "number" };
const FORM_FIELD: Schema = {
  type: "object",
  properties: {
    title: TEXT,
    type: { type: "string", enum: ["string", "number", "integer", "boolean", "array", "object"] },
    description: TEXT,
    enum: { type: "array", items: { format: "template" } },
    format: { type: "string", enum: ["date"] },
    minimum: NUMBER,
    maximum: NUMBER,
    minLength: { type: "integer" },
    maxLength: { type: "integer" },
    pattern: TEXT,
    default: {},
    properties: {},
    required: { type: "array", items: TEXT },
    items: {},
  },
};
const FORM: Schema = {
  type: "object",
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

export function PeoplePanel({ id }: { id: string }) {
  const { draft } = useEditing();
  const path: Path = ["metadata", "forms", id];
  const node = nodeAt(draft.root, path);
  const schema = useMemo(() => {
    const found = nodeAt(draft.root, ["metadata", "forms", id, "schema"]);
    return found && sound(valueOf(found));
  }, [draft, id]);
  return (
    <>
      <Field schema={FORM} label="Form for people" path={path} node={node} />
      {schema && <Preview key={JSON.stringify(Object.keys(schema.properties ?? {}))} schema={schema} />}
    </>
  );
}

function Preview({ schema }: { schema: FormSchema }) {
  const [values, setValues] = useState<Values>(() => initial(schema));
  return (
    <section className="group preview" aria-label="Preview of the form">
      <h3>Preview</h3>
      <Fields schema={schema} values={values} problems={problemsOf(schema, values)} change={setValues} />
    </section>
  );
}

/** As much of it as has the form of a schema: it may be half written. */
export function sound(value: unknown): FormSchema {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return {};
  const { properties, required, enum: choices, pattern, ...rest } = value as Record<string, unknown>;
  const inner = typeof properties === "object" && properties !== null && !Array.isArray(properties) ? Object.entries(properties).map(([name, one]) => [name, sound(one)] as const) : undefined;
  return {
    ...Object.fromEntries(Object.entries(rest).filter(([name, one]) => typeof one === (NUMERIC.has(name) ? "number" : "string") || name === "default")),
    ...(inner ? { properties: Object.fromEntries(inner) } : {}),
    ...(Array.isArray(required) ? { required: required.filter((one) => typeof one === "string") } : {}),
    ...(Array.isArray(choices) ? { enum: choices } : {}),
    ...(typeof pattern === "string" ? { pattern } : {}),
  };
}

const NUMERIC = new Set(["minimum", "maximum", "minLength", "maxLength"]);
