// A form from the JSON Schema subset of docs/definitions.md (forms for people): objects of strings, numbers, booleans,
// enums, dates, arrays and objects. What it does not know is edited as JSON.
import { useId, useState } from "react";
import type { Definition } from "../api/client";
import { readExact, textOf } from "../modeller/json";

export interface Schema {
  type?: string;
  title?: string;
  description?: string;
  default?: unknown;
  enum?: unknown[];
  format?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
}

/** Of the form that a definition has for one of its steps. */
export function schemaOf(definition: Definition, stepId: string): Schema | undefined {
  const forms = (definition.metadata as { forms?: Record<string, { schema?: Schema }> } | undefined)?.forms;
  const schema = forms?.[stepId]?.schema;
  return schema?.properties ? schema : undefined;
}

export type Values = Record<string, unknown>;

/** What the form begins with: the schema's defaults. */
export function initial(schema: Schema): Values {
  const values: Values = {};
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const value = blank(field);
    if (value !== undefined) values[name] = value;
  }
  return values;
}

/** What a field, or a new item of a list, begins with. */
export function blank(field: Schema): unknown {
  if (field.default !== undefined) return field.default;
  if (field.type === "boolean") return false;
  return field.type === "object" ? initial(field) : undefined;
}

/** What is wrong, by the dotted name of the field. */
export function problemsOf(schema: Schema, values: Values, above = ""): Record<string, string> {
  const found: Record<string, string> = {};
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const value = values[name];
    const reason = problemOf(field, value, schema.required?.includes(name) ?? false);
    if (reason !== undefined) found[above + name] = reason;
    else if (field.type === "array" && field.items && Array.isArray(value)) Object.assign(found, problemsOf(listOf(field.items, value), { ...value }, `${above}${name}.`));
    else if (field.type === "object" && field.properties && typeof value === "object" && value !== null) Object.assign(found, problemsOf(field, value as Values, `${above}${name}.`));
  }
  return found;
}

/** A list as the object that it is, with a needed field for each item. */
function listOf(items: Schema, values: readonly unknown[]): Schema {
  const names = values.map((_, at) => String(at));
  return { properties: Object.fromEntries(names.map((name) => [name, items])), required: names };
}

function problemOf(field: Schema, value: unknown, required: boolean): string | undefined {
  if (value === undefined || value === "") return required ? "Needed" : undefined;
  if (field.enum) return field.enum.includes(value) ? undefined : "None of the choices";
  if (typeof value === "number") {
    if (Number.isNaN(value)) return field.format === "date" ? "Not a whole date" : "Not a number";
    if (field.type === "integer" && !Number.isInteger(value)) return "A whole number";
    if (Math.abs(value) > Number.MAX_SAFE_INTEGER) return `No more than ${Number.MAX_SAFE_INTEGER.toLocaleString("en")} either way: of more this form would lose digits`;
    if (field.minimum !== undefined && value < field.minimum) return `At least ${field.minimum.toLocaleString()}`;
    if (field.maximum !== undefined && value > field.maximum) return `At most ${field.maximum.toLocaleString()}`;
  }
  if (typeof value === "string") {
    if (field.minLength !== undefined && value.length < field.minLength) return `At least ${field.minLength} characters`;
    if (field.maxLength !== undefined && value.length > field.maxLength) return `At most ${field.maxLength} characters`;
    if (field.pattern !== undefined && !matches(field.pattern, value)) return "Not in the form that is asked for";
  }
  return undefined;
}

function matches(pattern: string, value: string): boolean {
  try {
    return new RegExp(pattern, "u").test(value);
  } catch {
    return true; // a pattern that this browser can't read stops nobody
  }
}

/** Empty fields are left out. */
export function given(values: Values): Values {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined && value !== ""));
}

interface FieldsProps {
  schema: Schema;
  values: Values;
  problems: Record<string, string>;
  change: (values: Values) => void;
  above?: string;
}

export function Fields({ schema, values, problems, change, above = "" }: FieldsProps) {
  return (
    <>
      {Object.entries(schema.properties ?? {}).map(([name, field]) => (
        <Field
          key={name}
          name={name}
          field={field}
          required={schema.required?.includes(name) ?? false}
          value={values[name]}
          problem={problems[above + name]}
          set={(value) => change({ ...values, [name]: value })}
          inner={(schema, value, set) => <Fields schema={schema} values={value} problems={problems} change={set} above={`${above}${name}.`} />}
        />
      ))}
    </>
  );
}

interface FieldProps {
  name: string;
  field: Schema;
  required: boolean;
  value: unknown;
  problem: string | undefined;
  set: (value: unknown) => void;
  /** The fields of a schema inside of it. */
  inner: (schema: Schema, values: Values, set: (values: Values) => void) => React.ReactNode;
}

function Field({ name, field, required, value, problem, set, inner }: FieldProps) {
  const id = useId();
  const label = field.title || name; // a title that nobody has written yet names nothing
  const about = { id, "aria-invalid": problem !== undefined, "aria-describedby": `${id}-note`, required };
  const note = (
    <p id={`${id}-note`} className={problem === undefined ? "mute" : "wrong"}>
      {problem ?? field.description}
    </p>
  );
  if (field.type === "boolean")
    return (
      <div className="field tick">
        <label>
          <input type="checkbox" {...about} required={false} checked={value === true} onChange={(event) => set(event.target.checked)} /> {label}
        </label>
        {note}
      </div>
    );
  if (field.type === "object" && field.properties)
    return (
      <fieldset className="field">
        <legend>{label}</legend>
        {inner(field, (value ?? {}) as Values, set)}
      </fieldset>
    );
  if (field.type === "array" && field.items) {
    const all = Array.isArray(value) ? value : [];
    const item = (at: number) =>
      inner({ properties: { [at]: { ...field.items, title: field.items!.title || `${label} ${at + 1}` } }, required: [String(at)] }, { [at]: all[at] }, (made) => set(all.with(at, made[at])));
    return <List label={label} required={required} value={all} set={set} note={note} item={item} begins={blank(field.items)} />;
  }
  if (field.enum && field.enum.length <= 4)
    return (
      <fieldset className="field choices" role="radiogroup" aria-invalid={problem !== undefined} aria-required={required} aria-describedby={`${id}-note`}>
        <legend>
          {label}
          {required && <Star />}
        </legend>
        <div>
          {field.enum.map((choice) => (
            <label key={String(choice)}>
              <input type="radio" name={id} checked={value === choice} onChange={() => set(choice)} aria-describedby={`${id}-note`} /> {String(choice)}
            </label>
          ))}
        </div>
        {note}
      </fieldset>
    );
  return (
    <div className="field">
      <label htmlFor={id}>
        {label}
        {required && <Star />}
      </label>
      <Input about={about} field={field} value={value} set={set} />
      {note}
    </div>
  );
}

interface ListProps extends Pick<FieldProps, "required" | "set"> {
  label: string;
  value: unknown[];
  note: React.ReactNode;
  item: (at: number) => React.ReactNode;
  /** What a new one begins with. */
  begins: unknown;
}

function List({ label, required, value, set, note, item, begins }: ListProps) {
  // Each field keeps what is typed in it: those after one that is taken out are others.
  const [taken, setTaken] = useState(0);
  return (
    <fieldset className="field items">
      <legend>
        {label}
        {required && <Star />}
      </legend>
      {value.map((_, at) => (
        <div key={`${taken} ${at}`} className="line">
          {item(at)}
          <button
            type="button"
            className="btn sm ghost"
            aria-label={`Remove ${label} ${at + 1}`}
            onClick={({ currentTarget }) => {
              currentTarget.closest("fieldset")!.querySelector<HTMLElement>(":scope > button")!.focus(); // this one goes with its row
              setTaken(taken + 1);
              set(value.length === 1 ? undefined : value.filter((_, other) => other !== at));
            }}
          >
            Remove
          </button>
        </div>
      ))}
      <button
        type="button"
        className="btn sm"
        onClick={({ currentTarget }) => {
          set([...value, begins]);
          requestAnimationFrame(() => currentTarget.previousElementSibling?.querySelector<HTMLElement>("input, select, textarea")?.focus());
        }}
      >
        Add to {label}
      </button>
      {note}
    </fieldset>
  );
}

function Star() {
  return (
    <span className="star" aria-hidden="true">
      {" "}
      *
    </span>
  );
}

function Input({ about, field, value, set }: { about: object; field: Schema; value: unknown; set: (value: unknown) => void }) {
  if (field.enum)
    return (
      <select {...about} className="in" value={value === undefined ? "" : field.enum.indexOf(value)} onChange={(event) => set(event.target.value === "" ? undefined : field.enum![Number(event.target.value)])}>
        <option value="" />
        {field.enum.map((choice, at) => (
          <option key={String(choice)} value={at}>
            {String(choice)}
          </option>
        ))}
      </select>
    );
  if (field.type === "number" || field.type === "integer")
    return <input {...about} className="in" inputMode="decimal" defaultValue={value === undefined ? "" : String(value)} onChange={(event) => set(event.target.value.trim() === "" ? undefined : Number(event.target.value))} />;
  if (field.type === "string" || field.type === undefined) {
    const text = typeof value === "string" ? value : "";
    if (field.format === "date") return <DateInput about={about} text={text} set={set} />;
    if (field.format === "date-time") return <input {...about} className="in" value={text} placeholder="2026-11-22T09:00:00Z" onChange={(event) => set(event.target.value)} />;
    if ((field.maxLength ?? 1_000) > 100 && !field.format && !field.pattern) return <textarea {...about} className="in" rows={3} value={text} onChange={(event) => set(event.target.value)} />;
    return <input {...about} className="in" type={field.format === "email" ? "email" : "text"} value={text} onChange={(event) => set(event.target.value)} />;
  }
  return <Json about={about} value={value} set={set} />;
}

/** Half a date has the value of none, and browsers tell of no change: it is looked at after each key, and when it is left. */
function DateInput({ about, text, set }: { about: object; text: string; set: (value: unknown) => void }) {
  const look = ({ currentTarget: input }: React.SyntheticEvent<HTMLInputElement>) => set(input.validity.badInput ? Number.NaN : input.value);
  return <input {...about} className="in" type="date" value={text} onChange={look} onKeyUp={look} onBlur={look} />;
}

function Json({ about, value, set }: { about: object; value: unknown; set: (value: unknown) => void }) {
  const [text, setText] = useState(value === undefined ? "" : textOf(value));
  return (
    <textarea
      {...about}
      className="in mono"
      rows={3}
      value={text}
      spellCheck={false}
      onChange={(event) => {
        setText(event.target.value);
        try {
          set(event.target.value.trim() === "" ? undefined : readExact(event.target.value));
        } catch {
          set(Number.NaN); // told as a problem until it is JSON
        }
      }}
    />
  );
}
