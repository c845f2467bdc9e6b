// What people see of a user task: `metadata.forms[stepId]`, which engines ignore otherwise. Edited by the same editors as
// the language's fields, and shown as the page of tasks will show it.
import { useMemo, useState } from "react";
import { Fields, initial, problemsOf, type Schema as FormSchema, type Values } from "../parts/form";
import { useEditing } from "./context";
import type { Draft } from "./draft";
import { Field } from "./fields";
import { FORM } from "./forms";
import { nodeAt, type Path, valueOf } from "./json";

function schemaOf(draft: Draft, id: string): FormSchema | undefined {
  const found = nodeAt(draft.root, ["metadata", "forms", id, "schema"]);
  return found && sound(valueOf(found));
}

/** What the page of tasks shows of a user task; none where that is JSON, and of what is none of its own. */
export function formOf(draft: Draft, id: string): FormSchema | undefined {
  if (draft.definition.steps.find((step) => step.id === id)?.type !== "USER_TASK") return undefined;
  const schema = schemaOf(draft, id);
  return schema?.properties ? schema : undefined;
}

export function PeoplePanel({ id }: { id: string }) {
  const { draft } = useEditing();
  const path: Path = ["metadata", "forms", id];
  const node = nodeAt(draft.root, path);
  const schema = useMemo(() => schemaOf(draft, id), [draft, id]);
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
  const { properties, required, enum: choices, pattern, items, ...rest } = value as Record<string, unknown>;
  const inner = typeof properties === "object" && properties !== null && !Array.isArray(properties) ? Object.entries(properties).map(([name, one]) => [name, sound(one)] as const) : undefined;
  return {
    ...Object.fromEntries(Object.entries(rest).filter(([name, one]) => typeof one === (NUMERIC.has(name) ? "number" : "string") || name === "default")),
    ...(inner ? { properties: Object.fromEntries(inner) } : {}),
    ...(typeof items === "object" && items !== null ? { items: sound(items) } : {}),
    ...(Array.isArray(required) ? { required: required.filter((one) => typeof one === "string") } : {}),
    ...(Array.isArray(choices) ? { enum: choices } : {}),
    ...(typeof pattern === "string" ? { pattern } : {}),
  };
}

const NUMERIC = new Set(["minimum", "maximum", "minLength", "maxLength"]);
