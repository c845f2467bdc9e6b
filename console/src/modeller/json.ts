// JSON text that is edited in place. A tree says where each value stands in the text; an edit replaces characters, so
// that all others stay as they are: order, white space, how a number is written.

export interface Member {
  key: string;
  /** Of the key, with its quotes. */
  start: number;
  end: number;
  value: Node;
}
export interface Node {
  kind: "object" | "array" | "string" | "number" | "word";
  start: number;
  end: number;
  /** Of strings their text, of words true, false or null, of numbers the nearest that JavaScript has. */
  value?: unknown;
  members?: Member[];
  items?: Node[];
}
export type Path = readonly (string | number)[];

/** JSON text that is put in as it is. */
export class Raw {
  constructor(readonly text: string) {}
  toString(): string {
    return this.text;
  }
}

export class JsonProblem extends Error {
  constructor(
    reason: string,
    readonly at: number,
  ) {
    super(reason);
  }
}

const DEPTH_MAX = 200;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
/** A character at a time: with runs of them, one that is not ended would take twice as long with each character more. */
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const WORD = /true|false|null/y;
const SPACE = /[ \t\n\r]*/y;

/** Throws JsonProblem with the first character that is amiss. */
export function parse(text: string): Node {
  let at = text.startsWith("\ufeff") ? 1 : 0;
  const match = (pattern: RegExp): string | undefined => {
    pattern.lastIndex = at;
    const found = pattern.exec(text)?.[0];
    if (found !== undefined) at += found.length;
    return found;
  };
  const skip = () => match(SPACE);
  const expect = (sign: string) => {
    if (text[at] !== sign) throw new JsonProblem(at >= text.length ? `ends where ${sign} is due` : `${sign} is due here`, at);
    at += 1;
  };
  const several = (close: string, one: () => void) => {
    at += 1;
    skip();
    if (text[at] === close) {
      at += 1;
      return;
    }
    for (;;) {
      one();
      skip();
      if (text[at] === close) break;
      expect(",");
      skip();
    }
    at += 1;
  };
  const value = (depth: number): Node => {
    if (depth > DEPTH_MAX) throw new JsonProblem(`nested deeper than ${DEPTH_MAX}`, at);
    const start = at;
    const sign = text[at];
    if (sign === "{") {
      const members: Member[] = [];
      several("}", () => {
        const from = at;
        const key = match(STRING);
        if (key === undefined) throw new JsonProblem("a name in quotes is due here", at);
        const end = at;
        skip();
        expect(":");
        skip();
        members.push({ key: JSON.parse(key) as string, start: from, end, value: value(depth + 1) });
      });
      return { kind: "object", start, end: at, members };
    }
    if (sign === "[") {
      const items: Node[] = [];
      several("]", () => items.push(value(depth + 1)));
      return { kind: "array", start, end: at, items };
    }
    const string = sign === '"' ? match(STRING) : undefined;
    if (string !== undefined) return { kind: "string", start, end: at, value: JSON.parse(string) };
    const number = match(NUMBER);
    if (number !== undefined) return { kind: "number", start, end: at, value: Number(number) };
    const word = match(WORD);
    if (word !== undefined) return { kind: "word", start, end: at, value: JSON.parse(word) };
    throw new JsonProblem(at >= text.length ? "ends too early" : "this is no JSON value", at);
  };
  skip();
  const root = value(0);
  skip();
  if (at < text.length) throw new JsonProblem("something stands after the end", at);
  return root;
}

export function child(node: Node | undefined, key: string | number): Node | undefined {
  return typeof key === "number" ? node?.items?.[key] : node?.members?.find((one) => one.key === key)?.value;
}

export function nodeAt(root: Node, path: Path): Node | undefined {
  return path.reduce<Node | undefined>(child, root);
}

/** As JavaScript has it. Of names that stand twice, the first; names such as `10` lose their place, so order is read from the node. */
export function valueOf(node: Node): unknown {
  if (node.kind === "array") return node.items!.map(valueOf);
  if (node.kind !== "object") return node.value;
  // Without a prototype, so that `__proto__` is a name like others.
  const found: Record<string, unknown> = Object.create(null);
  for (const { key, value } of node.members!) if (!(key in found)) found[key] = valueOf(value);
  return found;
}

/** Without it no number can be beyond what JavaScript holds. */
const MANY_DIGITS = /\d{16}|\d[eE]/;

/** As `JSON.parse`, but for whole numbers that JavaScript can't hold: `Raw`, as they are written. `textOf` writes both. */
export function readExact(text: string): unknown {
  const plain: unknown = JSON.parse(text);
  return MANY_DIGITS.test(text) ? exactOf(parse(text), text) : plain;
}

function exactOf({ start, end, value, members, items }: Node, text: string): unknown {
  if (members) return Object.fromEntries(members.map((one) => [one.key, exactOf(one.value, text)]));
  if (items) return items.map((one) => exactOf(one, text));
  const beyond = typeof value === "number" && !Number.isSafeInteger(value) && !(Math.abs(value) < Number.MAX_SAFE_INTEGER);
  return beyond ? new Raw(text.slice(start, end)) : value;
}

export function stringOf(node: Node | undefined): string | undefined {
  return node?.kind === "string" ? (node.value as string) : undefined;
}

// --- writing -------------------------------------------------------------------------------------------------------

const UNIT = "  ";

/** On one line, with a space after commas and colons. */
function inline(value: unknown): string {
  if (value instanceof Raw) return value.text;
  if (Array.isArray(value)) return `[${value.map(inline).join(", ")}]`;
  if (typeof value === "object" && value !== null) return `{${membersOf(value).map(([key, one]) => `${JSON.stringify(key)}: ${inline(one)}`).join(", ")}}`;
  return JSON.stringify(value) ?? "null"; // as in an array
}

function membersOf(value: object): [string, unknown][] {
  return Object.entries(value).filter(([, one]) => one !== undefined);
}

function indented(value: unknown, margin: string): string {
  const inner = margin + UNIT;
  if (Array.isArray(value) && value.length) return `[\n${value.map((one) => inner + indented(one, inner)).join(",\n")}\n${margin}]`;
  if (typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Raw)) {
    const members = membersOf(value);
    if (members.length) return `{\n${members.map(([key, one]) => `${inner}${JSON.stringify(key)}: ${indented(one, inner)}`).join(",\n")}\n${margin}}`;
  }
  return inline(value);
}

/** What `readExact` gives as JSON text. */
export function textOf(value: unknown, lines = false): string {
  return lines ? indented(value, "") : inline(value);
}

/** The same values in the same order, one to a line; numbers and strings as they are written. */
export function pretty(text: string, without: readonly string[] = []): string {
  const asRaw = (node: Node, margin: string, left: readonly string[]): string => {
    const inner = margin + UNIT;
    const lines =
      node.kind === "array"
        ? node.items!.map((one) => asRaw(one, inner, []))
        : node.members?.filter((one) => !left.includes(one.key)).map((one) => `${text.slice(one.start, one.end)}: ${asRaw(one.value, inner, [])}`);
    if (lines === undefined) return text.slice(node.start, node.end);
    const [open, close] = node.kind === "array" ? "[]" : "{}";
    return lines.length ? `${open}\n${lines.map((line) => inner + line).join(",\n")}\n${margin}${close}` : `${open}${close}`;
  };
  return `${asRaw(parse(text), "", without)}\n`;
}

// --- editing: each takes a text and gives the next one ---------------------------------------------------------------

interface Slot {
  start: number;
  end: number;
}

function splice(text: string, start: number, end: number, by: string): string {
  return text.slice(0, start) + by + text.slice(end);
}

function slotsOf(node: Node): Slot[] {
  return node.items ?? node.members?.map((one) => ({ start: one.start, end: one.value.end })) ?? [];
}

/** What stands before the slot on its line, if that is only white space. */
function marginOf(text: string, at: number): string | undefined {
  const line = text.slice(text.lastIndexOf("\n", at - 1) + 1, at);
  return text.lastIndexOf("\n", at - 1) >= 0 && /^[ \t]*$/.test(line) ? line : undefined;
}

function marginOfLine(text: string, at: number): string {
  return /^[ \t]*/.exec(text.slice(text.lastIndexOf("\n", at - 1) + 1))![0];
}

/** How a value is written that comes between these: on one line where its neighbours are, else as they are. */
function written(text: string, value: unknown, neighbour: Node | undefined, margin: string | undefined): string {
  const wide = margin !== undefined && (neighbour === undefined || neighbour.kind === "string" || text.slice(neighbour.start, neighbour.end).includes("\n"));
  return wide ? indented(value, margin) : inline(value);
}

/** Puts `made` (without comma) at a place among the slots of an object or array. */
function insertSlot(text: string, node: Node, at: number, make: (margin: string | undefined) => string): string {
  const slots = slotsOf(node);
  if (slots.length === 0) {
    const broken = text.slice(node.start, node.end).includes("\n") || node.start === 0 || marginOf(text, node.start) !== undefined;
    if (!broken) return splice(text, node.start + 1, node.end - 1, make(undefined));
    const margin = marginOfLine(text, node.start);
    return splice(text, node.start + 1, node.end - 1, `\n${margin + UNIT}${make(margin + UNIT)}\n${margin}`);
  }
  const next = slots[at];
  if (next) {
    const margin = marginOf(text, next.start);
    return splice(text, next.start, next.start, margin === undefined ? `${make(undefined)}, ` : `${make(margin)},\n${margin}`);
  }
  const last = slots.at(-1)!;
  const margin = marginOf(text, last.start);
  return splice(text, last.end, last.end, margin === undefined ? `, ${make(undefined)}` : `,\n${margin}${make(margin)}`);
}

function removeSlot(text: string, node: Node, at: number): string {
  const slots = slotsOf(node);
  const slot = slots[at]!;
  if (slots.length === 1) return splice(text, node.start + 1, node.end - 1, "");
  const next = slots[at + 1];
  return next ? splice(text, slot.start, next.start, "") : splice(text, slots[at - 1]!.end, slot.end, "");
}

function holder(root: Node, path: Path): { node: Node; at: number } | undefined {
  const node = nodeAt(root, path.slice(0, -1));
  const key = path.at(-1);
  if (node === undefined || key === undefined) return undefined;
  if (typeof key === "number") return node.items && key >= 0 && key < node.items.length ? { node, at: key } : undefined;
  const at = node.members?.findIndex((one) => one.key === key) ?? -1;
  return at < 0 ? undefined : { node, at };
}

/** Sets what stands at the path; objects that are missing on the way come to be. A text that can't be edited so is given back. */
export function set(text: string, path: Path, value: unknown): string {
  const root = parse(text);
  const found = nodeAt(root, path);
  if (found) {
    const margin = marginOfLine(text, found.start);
    const broken = text.slice(found.start, found.end).includes("\n");
    return splice(text, found.start, found.end, broken ? indented(value, margin) : inline(value));
  }
  const key = path.at(-1);
  const outer = path.slice(0, -1);
  const node = nodeAt(root, outer);
  if (key === undefined) return text;
  if (node === undefined) return typeof key === "string" ? set(text, outer, { [key]: value }) : text;
  if (typeof key === "number") return node.kind === "array" && key === node.items!.length ? insert(text, outer, key, value) : text;
  if (node.kind !== "object") return set(text, outer, { [key]: value });
  return insertMember(text, outer, node.members!.length, key, value);
}

/** Puts an item into an array. */
export function insert(text: string, path: Path, at: number, value: unknown): string {
  const node = nodeAt(parse(text), path);
  if (node?.kind !== "array") return set(text, path, [value]);
  return insertSlot(text, node, at, (margin) => written(text, value, node.items![at] ?? node.items!.at(-1), margin));
}

/** Puts a name and its value into an object, at a place. A name that is there is set. */
export function insertMember(text: string, path: Path, at: number, key: string, value: unknown): string {
  const node = nodeAt(parse(text), path);
  if (node?.kind !== "object") return set(text, path, { [key]: value });
  if (node.members!.some((one) => one.key === key)) return set(text, [...path, key], value);
  return insertSlot(text, node, at, (margin) => `${JSON.stringify(key)}: ${margin === undefined ? inline(value) : indented(value, margin)}`);
}

export function remove(text: string, path: Path): string {
  const found = holder(parse(text), path);
  return found ? removeSlot(text, found.node, found.at) : text;
}

/** Gives a member another name; nothing where that name is taken. */
export function rename(text: string, path: Path, key: string): string {
  const found = holder(parse(text), path);
  const member = found?.node.members?.[found.at];
  if (!member || found!.node.members!.some((one) => one.key === key)) return text;
  return splice(text, member.start, member.end, JSON.stringify(key));
}

/** Moves an item or a member to another place among its neighbours. */
export function move(text: string, path: Path, to: number): string {
  const found = holder(parse(text), path);
  const slots = found ? slotsOf(found.node) : [];
  if (!found || to < 0 || to >= slots.length || to === found.at) return text;
  // The texts of the slots change places; what stands between them stays.
  const texts = slots.map((slot) => text.slice(slot.start, slot.end));
  texts.splice(to, 0, ...texts.splice(found.at, 1));
  return slots.reduceRight((done, slot, at) => splice(done, slot.start, slot.end, texts[at]!), text);
}
