import { expect, test } from "vitest";
import { isNeeded, need, notYetNeeded, renameField } from "./forms";
import { nodeAt, parse, remove, valueOf } from "./json";

const SCHEMA = ["metadata", "forms", "ask", "schema"];
const field = (name: string) => [...SCHEMA, "properties", name];
const TEXT = JSON.stringify({ metadata: { forms: { ask: { schema: { type: "object", properties: { amount: {}, note: {} } } } } } }, null, 2);
const requiredOf = (text: string) => {
  const list = nodeAt(parse(text), [...SCHEMA, "required"]);
  return list && valueOf(list);
};

test("a tick at a field writes it into the schema's list of what is required", () => {
  const one = need(TEXT, field("note"), true);
  const both = need(one, field("amount"), true);
  expect([requiredOf(TEXT), requiredOf(one), requiredOf(both)]).toEqual([undefined, ["note"], ["note", "amount"]]);
  expect([isNeeded(parse(one), field("note")), isNeeded(parse(one), field("amount"))]).toEqual([true, false]);
  expect(need(both, field("amount"), true)).toBe(both);
  expect(need(both, field("amount"), false)).toBe(one);
  expect(need(one, field("note"), false)).toBe(TEXT);
  expect(need(TEXT, field("note"), false)).toBe(TEXT);
});

test("of fields within a field those are offered that are not yet needed", () => {
  const inner = [...field("amount"), "required"];
  const root = parse(JSON.stringify({ metadata: { forms: { ask: { schema: { properties: { amount: { properties: { a: {}, b: {}, c: {} }, required: ["b", "gone"] } } } } } } }));
  expect([notYetNeeded(root, inner), notYetNeeded(root, inner, 0), notYetNeeded(parse(TEXT), inner)]).toEqual([["a", "c"], ["a", "b", "c"], []]);
});

test("a field that is needed stays so under another name", () => {
  const needed = need(TEXT, field("note"), true);
  expect(requiredOf(renameField(needed, field("note"), "reason"))).toEqual(["reason"]);
  expect(requiredOf(renameField(needed, field("amount"), "sum"))).toEqual(["note"]);
  expect(renameField(needed, field("note"), "amount"), "the name is taken").toBe(needed);
  expect(requiredOf(remove(need(needed, field("note"), false), field("note")))).toBeUndefined();
});
