import { expect, test } from "vitest";
import { blank, given, initial, problemsOf, type Schema } from "./form";

const SCHEMA: Schema = {
  type: "object",
  required: ["decision", "amount"],
  properties: {
    decision: { enum: ["approve", "decline"] },
    amount: { type: "integer", minimum: 1, maximum: 92_000 },
    seen: { type: "boolean" },
    reason: { type: "string", maxLength: 5, default: "none" },
    to: { type: "object", required: ["city"], properties: { city: { type: "string" } } },
  },
};

test("a form begins with its defaults", () => {
  expect(initial(SCHEMA)).toEqual({ seen: false, reason: "none", to: {} });
});

test("each problem stands at its field", () => {
  expect(problemsOf(SCHEMA, initial(SCHEMA))).toEqual({ decision: "Needed", amount: "Needed", "to.city": "Needed" });
  const values = { decision: "perhaps", amount: 1.5, reason: "too long", to: { city: "Kraków" } };
  expect(problemsOf(SCHEMA, values)).toEqual({ decision: "None of the choices", amount: "A whole number", reason: "At most 5 characters" });
  expect(problemsOf({ properties: { n: { type: "integer" } } }, { n: 2 ** 53 }).n).toContain("would lose digits");
  expect(problemsOf(SCHEMA, { ...values, decision: "approve", amount: 95_000, reason: "" })).toEqual({ amount: `At most ${(92_000).toLocaleString()}` });
});

test("of a list each item has its own problem", () => {
  const schema: Schema = { properties: { dates: { type: "array", items: { type: "string", maxLength: 3 } }, free: { type: "array" } } };
  expect(problemsOf(schema, { dates: ["a", undefined, "long"], free: [1] })).toEqual({ "dates.1": "Needed", "dates.2": "At most 3 characters" });
  expect(problemsOf(schema, {})).toEqual({});
});

test("a new item that needs no answer is none that is missing", () => {
  const items: Schema = { type: "object", properties: { sure: { type: "boolean" }, note: { type: "string" } }, required: ["sure"] };
  const schema: Schema = { properties: { flags: { type: "array", items: { type: "boolean" } }, people: { type: "array", items } } };
  expect(problemsOf(schema, { flags: [blank({ type: "boolean" })], people: [blank(items)] })).toEqual({});
  expect([blank({ type: "string" }), blank({ type: "integer", default: 3 })]).toEqual([undefined, 3]);
});

test("a pattern that can't be read stops nobody", () => {
  const schema: Schema = { properties: { a: { type: "string", pattern: "(" }, b: { type: "string", pattern: "^x+$" } } };
  expect(problemsOf(schema, { a: "y", b: "y" })).toEqual({ b: "Not in the form that is asked for" });
});

test("half a date is no date, also where none is needed", () => {
  expect(problemsOf({ properties: { due: { type: "string", format: "date" } } }, { due: Number.NaN })).toEqual({ due: "Not a whole date" });
});

test("empty fields are left out", () => {
  expect(given({ a: "", b: undefined, c: 0, d: false })).toEqual({ c: 0, d: false });
});
