// Editors for the fields of the language, one for each form that its schema has. They read the draft's text where it
// stands and change it there.
import { type ReactNode, useId, useState } from "react";
import { type Told, useEditing, useTold, useUntaken } from "./context";
import type { Draft } from "./draft";
import { newCondition } from "./edits";
import { child, insert, insertMember, JsonProblem, move, type Node, nodeAt, parse, type Path, Raw, remove, rename, set, stringOf } from "./json";
import { expressionIn } from "./completion";
import { ExpressionField } from "./expression";
import { focusLeft, focusNew } from "./focus";
import { isNeeded, need, notYetNeeded, renameField } from "./forms";
import { countsFor, type Schema } from "./language";
import { nameOfPlace, partsOf } from "./places";
import { CommittedText } from "./text";
import { inWords, words } from "./spoken";
import { useTurn } from "./turn";

export interface FieldProps {
  schema: Schema;
  /** Its name for people, and for screen readers where it is one of several. */
  label: string;
  path: Path;
  node: Node | undefined;
  needed?: boolean;
  /** Said below, where the engine finds nothing amiss. */
  note?: string | undefined;
}

/** What is seen of a label where it stands: boxes around it say the rest. */
function seen(label: string): string {
  const last = label.split(": ").at(-1)!;
  return last.charAt(0).toUpperCase() + last.slice(1);
}

/** The name of a button that shows what is seen of the label: it begins with that, and says of what it is. */
function called(label: string): string {
  const parts = label.toLowerCase().split(": ");
  const last = parts.pop()!;
  return parts.length ? `${last} of ${parts.join(": ")}` : last;
}

const NONE: readonly string[] = [];
const EMPTY: readonly string[] = ["is needed, and empty"];
const keyOf = (path: Path) => JSON.stringify(path);

/** What the engine says of a field. */
export function Said({ problems, hints }: Told) {
  return (
    <>
      {problems.map((problem) => (
        <p key={problem} className="wrong">
          {problem}
        </p>
      ))}
      {hints.map((hint) => (
        <p key={hint} className="hinted">
          <b>Hint:</b> {hint}
        </p>
      ))}
    </>
  );
}

/** A field of an object, with its name above and what the engine says of it below. */
export function Field(props: FieldProps) {
  const { schema, label, needed, path, node, note } = props;
  const says = useId();
  const { place, problems: known, hints } = useTold(path);
  const { draft } = useEditing();
  if (schema.type === "array" && schema.ticked && (node === undefined || node.items?.every((one) => hasTick(draft, path, one)))) return null;
  // Told at once, before the engine says what it needs there.
  const empty = needed && (node === undefined || stringOf(node) === "");
  const problems = known.length === 0 && empty ? EMPTY : known;
  const told = problems.length + hints.length > 0;
  const grouped = schema.type === "object" || schema.type === "array";
  const Box = grouped ? "fieldset" : "div";
  return (
    <Box className={grouped ? "group" : "field"} data-place={place} aria-describedby={grouped && told ? says : undefined}>
      {grouped ? (
        <legend>
          {seen(label)}
          {needed && <span className="star"> needed</span>}
        </legend>
      ) : (
        <span className="lbl" aria-hidden="true">
          {seen(label)}
          {needed && <span className="star"> needed</span>}
        </span>
      )}
      <Editor {...props} problems={problems} describedBy={told || schema.description ? says : undefined} />
      {(told || schema.description) && (
        <div id={says}>
          <Said problems={problems} hints={hints} />
          {problems.length === 0 && note && <p>{note}</p>}
          {problems.length === 0 && schema.description && <p className="mute">{schema.description.replace(" (addition)", "").replaceAll("`", "")}</p>}
        </div>
      )}
    </Box>
  );
}

/** Whether a field beside the list has this name. */
function hasTick(draft: Draft, list: Path, name: Node): boolean {
  return nodeAt(draft.root, [...list.slice(0, -1), "properties"])?.members?.some(({ key }) => key === name.value) ?? false;
}

/** One of several, with what the engine says of it below. */
function Row({ path, children }: { path: Path; children: (problems: readonly string[], describedBy: string | undefined) => ReactNode }) {
  const says = useId();
  const { place, problems, hints } = useTold(path);
  const told = problems.length + hints.length > 0;
  return (
    <div className="row" data-place={place}>
      {children(problems, told ? says : undefined)}
      {told && (
        <div id={says}>
          <Said problems={problems} hints={hints} />
        </div>
      )}
    </div>
  );
}

type EditorProps = FieldProps & { problems?: readonly string[] | undefined; describedBy?: string | undefined };

function Editor(props: EditorProps) {
  const { schema, node } = props;
  if (schema.type === "boolean") return <Tick {...props} />;
  if (schema.enum) return <Choice {...props} options={schema.enum.map((one) => [one, one])} />;
  if (schema.format === "step-id") return <StepChoice {...props} />;
  if (schema.format === "field-name") return <FieldChoice {...props} />;
  const parts = partsOf(schema);
  if (parts === "items") return <Items {...props} items={schema.items!} />;
  if (parts === "members") return <Members {...props} properties={schema.properties!} />;
  if (parts === "rows") return <Rows {...props} values={schema.additionalProperties as Schema} />;
  if (schema.format === "expression") return <Expression {...props} />;
  if (schema.format === "template" && schema.type === undefined) return <Value {...props} />;
  if (schema.format === "template" && (node === undefined || (node.kind === "string" && !/\n/.test(stringOf(node)!)))) return <Template {...props} />;
  if (schema.type === "string" && (node === undefined || node.kind === "string")) return <Text {...props} />;
  if ((schema.type === "integer" || schema.type === "number") && (node === undefined || node.kind === "number")) return <Text {...props} number />;
  return <AnyJson {...props} />;
}

/** What is not needed and empty is not there. */
function useText({ path, node, needed }: EditorProps, number = false) {
  const { edit, draft } = useEditing();
  const value = node === undefined ? "" : number ? draft.text.slice(node.start, node.end) : (stringOf(node) ?? "");
  const put = (text: string) => edit((now) => (text === "" && (number || !needed) ? remove(now, path) : set(now, path, number ? new Raw(text) : text)), keyOf(path));
  return { value, put };
}

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

function Text({ number, ...props }: EditorProps & { number?: boolean }) {
  const { value, put } = useText(props, number);
  const [typed, setTyped] = useState<string>();
  const change = (text: string) => {
    setTyped(text);
    if (!number || text === "" || NUMBER.test(text)) put(text);
  };
  const strange = number === true && typed !== undefined && typed !== "" && !NUMBER.test(typed);
  useUntaken(strange);
  const common = { "aria-label": props.label, "aria-describedby": props.describedBy, "aria-invalid": Boolean(props.problems?.length) };
  if (!number && value.includes("\n")) return <textarea {...common} className="in" rows={4} value={value} onChange={(event) => put(event.target.value)} />;
  return (
    <>
    <input
      {...common}
      aria-invalid={common["aria-invalid"] || strange}
      className={props.schema.format === "duration" || number ? "in mono" : "in"}
      inputMode={number ? "numeric" : undefined}
      placeholder={props.schema.format === "duration" ? "PT30S" : undefined}
      value={typed ?? value}
      onChange={(event) => change(event.target.value)}
      onBlur={() => setTyped(undefined)}
    />
    {props.schema.format === "duration" && inWords(typed ?? value) && <p className="mute">{inWords(typed ?? value)}</p>}
    {strange && <p className="wrong">Not a number: {props.label.toLowerCase()} stays {value === "" ? "empty" : value}</p>}
    </>
  );
}

function Template(props: EditorProps) {
  const { value, put } = useText(props);
  const said = inWords(value);
  return (
    <>
      <ExpressionField path={props.path} label={props.label} value={value} kind="value" template change={put} describedBy={props.describedBy} invalid={Boolean(props.problems?.length)} />
      {said && <p className="mute">{said}</p>}
    </>
  );
}

/** Text, an expression, or any JSON. */
function Value(props: EditorProps) {
  const { node, label } = props;
  const text = node?.kind === "string" && !stringOf(node)!.includes("\n");
  const [asJson, setAsJson] = useState(!text);
  if (asJson || !text) return <AnyJson {...props} />;
  return (
    <div className="line">
      <Template {...props} />
      <button type="button" className="btn sm ghost" aria-label={`${label} as JSON`} onClick={() => setAsJson(true)}>
        JSON
      </button>
    </div>
  );
}

function Expression(props: EditorProps) {
  const { value, put } = useText(props);
  return <ExpressionField path={props.path} label={props.label} value={value} kind="value" change={put} describedBy={props.describedBy} invalid={Boolean(props.problems?.length)} />;
}

function Tick({ label, path, node, describedBy, problems }: EditorProps) {
  const { edit } = useEditing();
  const on = node?.value === true;
  // A timer interrupts unless it says otherwise: what is not there is not the same as false.
  const options: [string, string][] = [
    ["", "not said"],
    ["true", "yes"],
    ["false", "no"],
  ];
  const value = node === undefined ? "" : String(on);
  return (
    <select
      className="in"
      aria-label={label}
      aria-describedby={describedBy}
      aria-invalid={Boolean(problems?.length)}
      value={value}
      onChange={({ target }) => edit((now) => (target.value === "" ? remove(now, path) : set(now, path, target.value === "true")))}
    >
      {options.map(([one, text]) => (
        <option key={one} value={one}>
          {text}
        </option>
      ))}
    </select>
  );
}

function Choice({ label, path, node, needed, options, describedBy, problems, asked }: EditorProps & { options: [value: string, text: string][]; asked?: () => void }) {
  const { edit } = useEditing();
  const value = stringOf(node) ?? "";
  const strange = value !== "" && !options.some(([one]) => one === value);
  return (
    <select
      className="in"
      aria-label={label}
      aria-describedby={describedBy}
      aria-invalid={Boolean(problems?.length)}
      value={value}
      onPointerDown={asked}
      onFocus={asked}
      onChange={({ target }) => edit((now) => (target.value === "" ? remove(now, path) : set(now, path, target.value)))}
    >
      {(!needed || value === "") && <option value="">–</option>}
      {strange && <option value={value}>{value} (unknown)</option>}
      {options.map(([one, text]) => (
        <option key={one} value={one}>
          {text}
        </option>
      ))}
    </select>
  );
}

/** More are in the list in their turn, or when somebody comes to it; what is chosen is there at once. */
const LISTED_MAX_STEPS = 50;

function StepChoice(props: EditorProps) {
  const { steps } = useEditing().draft.definition;
  const large = steps.length > LISTED_MAX_STEPS;
  const isDue = useTurn(large);
  const [isAsked, setAsked] = useState(false);
  const listed = !large || isDue || isAsked ? steps : steps.filter(({ id }) => id === stringOf(props.node));
  return <Choice {...props} asked={() => setAsked(true)} options={listed.map(({ id, name }) => [id, name && name !== id ? `${name} (${id})` : id])} />;
}

/** One of the fields beside the list that it stands in. */
function FieldChoice(props: EditorProps) {
  const { draft } = useEditing();
  const { path } = props;
  return <Choice {...props} options={notYetNeeded(draft.root, path.slice(0, -1), Number(path.at(-1))).map((name) => [name, name])} />;
}

/** Takes something out, and with it the button that has the keys. */
function useRemove(): (path: Path, to?: (now: string) => string) => void {
  const { edit, draft } = useEditing();
  return (path, to = (now) => remove(now, path)) => {
    edit(to);
    focusLeft(path.map((_, depth) => nameOfPlace(draft.root, path.slice(0, path.length - depth))));
  };
}

/** Buttons that move one of several, and take it out. `out`: what goes with it. */
function RowActs({ path, at, count, label, out = (now) => now }: { path: Path; at: number; count: number; label: string; out?: ((now: string) => string) | undefined }) {
  const { edit } = useEditing();
  const takeOut = useRemove();
  const without = (now: string) => remove(out(now), count === 1 ? path.slice(0, -1) : path);
  return (
    <span className="rowacts">
      <button type="button" className="btn sm ghost" aria-label={`Move ${label} up`} disabled={at === 0} onClick={() => edit((now) => move(now, path, at - 1))}>
        ↑
      </button>
      <button type="button" className="btn sm ghost" aria-label={`Move ${label} down`} disabled={at === count - 1} onClick={() => edit((now) => move(now, path, at + 1))}>
        ↓
      </button>
      <button type="button" className="btn sm ghost" aria-label={`Remove ${label}`} onClick={() => (at === count - 1 ? takeOut(path.slice(0, -1), without) : edit(without))}>
        Remove
      </button>
    </span>
  );
}

/** What a new one is, as far as its form says. */
function blank(schema: Schema): unknown {
  if (schema.default !== undefined) return schema.default;
  if (schema.type === "object" && schema.properties) return Object.fromEntries((schema.required ?? []).map((name) => [name, schema.properties?.[name]?.enum?.[0] ?? ""]));
  return "";
}

function Items({ label, path, node, items, schema }: EditorProps & { items: Schema }) {
  const { edit, draft } = useEditing();
  const all = node?.items ?? [];
  const add = () => {
    edit((now) => insert(now, path, all.length, items.format === "field-name" ? (notYetNeeded(parse(now), path)[0] ?? "") : blank(items)));
    focusNew(nameOfPlace(draft.root, [...path, all.length]));
  };
  return (
    <>
      {all.map((one, at) => schema.ticked && hasTick(draft, path, one) ? null : (
        // biome-ignore lint: an item has no name but its place
        <Row key={at} path={[...path, at]}>
          {(problems, describedBy) => (
            <>
              <Editor schema={items} label={`${label} ${at + 1}`} path={[...path, at]} node={one} needed problems={problems} describedBy={describedBy} />
              <RowActs path={[...path, at]} at={at} count={all.length} label={`${label} ${at + 1}`} />
            </>
          )}
        </Row>
      ))}
      {!schema.ticked && <Add to={label} add={add} />}
    </>
  );
}

function Add({ to, add }: { to: string; add: () => void }) {
  return (
    <button type="button" className="btn sm" aria-label={`Add to ${called(to)}`} onClick={add}>
      Add to {seen(to).toLowerCase()}
    </button>
  );
}

function Members({ label, path, node, properties, schema, problems, describedBy }: EditorProps & { properties: Record<string, Schema> }) {
  const { edit, draft } = useEditing();
  const takeOut = useRemove();
  if (node === undefined)
    return (
      <button
        type="button"
        className="btn sm"
        aria-label={`Add ${called(label)}`}
        onClick={() => {
          edit((now) => set(now, path, blank(schema)));
          focusNew(nameOfPlace(draft.root, path));
        }}
      >
        Add {seen(label).toLowerCase()}
      </button>
    );
  if (node.kind !== "object") return <AnyJson schema={schema} label={label} path={path} node={node} problems={problems} describedBy={describedBy} />;
  const strange = node.members!.filter((one) => !(one.key in properties));
  const type = stringOf(child(node, "type"));
  const shown = Object.entries(properties).filter(([name, own]) => child(node, name) !== undefined || countsFor(own, type));
  return (
    <>
      {shown.map(([name, own]) => (
        <Field key={name} schema={own} label={`${label}: ${words(name).toLowerCase()}`} path={[...path, name]} node={child(node, name)} needed={schema.required?.includes(name) ?? false} />
      ))}
      {strange.map((one) => (
        <Unknown key={one.key} path={[...path, one.key]} name={one.key} />
      ))}
      {typeof path.at(-1) === "string" && (
        <button type="button" className="btn sm ghost" aria-label={`Remove ${called(label)}`} onClick={() => takeOut(path)}>
          Remove {seen(label).toLowerCase()}
        </button>
      )}
    </>
  );
}

export function Unknown({ path, name }: { path: Path; name: string }) {
  const takeOut = useRemove();
  const { place, ...told } = useTold(path);
  return (
    <div data-place={place}>
      <p className="row unknown">
        <span>
          <b className="mono">{name}</b> <span className="wrong">is not known to this engine</span>
        </span>
        <button type="button" className="btn sm ghost" aria-label={`Remove ${name}`} onClick={() => takeOut(path)}>
          Remove
        </button>
      </p>
      <Said {...told} />
    </div>
  );
}

/** Names that people choose, with their values; their order counts. */
function Rows({ label, path, node, schema, values }: EditorProps & { values: Schema }) {
  const { edit, draft } = useEditing();
  const all = node?.members ?? [];
  const keys = all.map((one) => one.key);
  const conditions = schema.propertyNames?.format === "expression";
  const rename_ = (key: string) => (to: string) => edit((now) => (schema.ticked ? renameField : rename)(now, [...path, key], to));
  const add = () => {
    let key = conditions ? "true" : "name";
    for (let number = 2; all.some((one) => one.key === key); number++) key = conditions ? newCondition(keys) : `name${number}`;
    const first = conditions && all.at(-1)?.key === "true" ? all.length - 1 : all.length;
    const value = values.enum?.[0] ?? (values.format === "step-id" ? (draft.definition.steps.at(-1)?.id ?? "") : blank(values));
    edit((now) => insertMember(now, path, first, key, value));
    focusNew(nameOfPlace(draft.root, [...path, key]));
  };
  return (
    <>
      {all.map((one, at) => {
        const name = `${label} ${at + 1}`;
        const own = [...path, one.key];
        return (
          // biome-ignore lint: a name that is typed must not make it another row
          <Row key={at} path={own}>
            {(problems, describedBy) => {
              // Of a condition and where it leads the engine tells one path.
              const lost = values.format === "step-id" && !draft.places.has(stringOf(one.value) ?? "");
              return (
                <>
                  {conditions && one.key === "true" ? (
                    <div className="line">
                      <i>otherwise</i>
                      <button type="button" className="link" onClick={() => edit((now) => rename(now, own, newCondition(keys)))}>
                        give it a condition
                      </button>
                    </div>
                  ) : (
                    <ExpressionOrName path={own} label={`${name}: ${conditions ? "condition" : "name"}`} value={one.key} expression={conditions} invalid={conditions && !lost && problems.length > 0} describedBy={describedBy} commit={rename_(one.key)} />
                  )}
                  <Editor schema={values} label={`${name}: ${conditions ? "goes to" : "value"}`} path={own} node={one.value} needed problems={conditions && !lost ? NONE : problems} describedBy={describedBy} />
                  {schema.ticked && (
                    <label>
                      <input type="checkbox" aria-label={`${name}: needed`} checked={isNeeded(draft.root, own)} onChange={({ target }) => edit((now) => need(now, own, target.checked))} /> needed
                    </label>
                  )}
                  <RowActs path={own} at={at} count={all.length} label={name} out={schema.ticked ? (now) => need(now, own, false) : undefined} />
                </>
              );
            }}
          </Row>
        );
      })}
      <Add to={label} add={add} />
    </>
  );
}

interface ExpressionOrNameProps {
  path: Path;
  label: string;
  value: string;
  expression: boolean;
  invalid: boolean;
  describedBy: string | undefined;
  commit: (to: string) => void;
}

function ExpressionOrName({ path, label, value, expression, invalid, describedBy, commit }: ExpressionOrNameProps) {
  if (expression) return <ExpressionField path={path} label={label} value={value} kind="condition" change={commit} invalid={invalid} describedBy={describedBy} commit />;
  return (
    <CommittedText
      label={label}
      value={value}
      commit={(to) => {
        commit(to);
        return undefined;
      }}
    />
  );
}

/** Any JSON, as it is written in the text; taken over once it can be read. */
export function AnyJson({ label, path, node, describedBy, problems }: EditorProps) {
  const { edit, draft } = useEditing();
  const [typed, setTyped] = useState<string>();
  const [wrong, setWrong] = useState<string>();
  useUntaken(wrong !== undefined);
  const value = node === undefined ? "" : draft.text.slice(node.start, node.end);
  const change = (text: string) => {
    setTyped(text);
    try {
      if (text.trim() !== "") parse(text);
      setWrong(undefined);
      edit((now) => (text.trim() === "" ? remove(now, path) : set(now, path, new Raw(text.trim()))), keyOf(path));
    } catch (error) {
      setWrong(error instanceof JsonProblem ? `Not JSON: ${error.message}` : String(error));
    }
  };
  const shown = typed ?? value;
  return (
    <>
      <textarea
        className="in mono"
        aria-label={label}
        aria-describedby={describedBy}
        aria-invalid={wrong !== undefined || Boolean(problems?.length)}
        spellCheck={false}
        rows={Math.min(16, shown.split("\n").length + 1)}
        value={shown}
        onChange={(event) => change(event.target.value)}
        onBlur={() => wrong === undefined && setTyped(undefined)}
      />
      {wrong && <p className="wrong">{wrong}</p>}
      {node?.kind === "string" && expressionIn(stringOf(node)!) !== undefined && <p className="mute">An expression.</p>}
    </>
  );
}
