import { expect, test } from "vitest";
import { readExact } from "../modeller/json";
import { variablesOf } from "../parts/dialog";
import { changesOf } from "./edit";

test("only what differs is sent", () => {
  expect(changesOf({ a: 1, b: { x: [1] }, c: null }, { a: 2, b: { x: [1] }, d: 0 })).toEqual({ set: { a: 2, d: 0 }, remove: ["c"] });
});

test("nothing changed is nothing to send, and names of Object's own are ordinary", () => {
  expect(changesOf({ toString: 1 }, { toString: 1 })).toEqual({ set: {}, remove: [] });
  expect(changesOf({}, { constructor: 1 })).toEqual({ set: { constructor: 1 }, remove: [] });
});

test("a number differs by its last digit, however large", () => {
  const before = variablesOf('{"a": 9007199254740993, "b": 9007199254740993}');
  expect(changesOf(before, variablesOf('{"a": 9007199254740993, "b": 9007199254740992}'))).toEqual({ set: { b: readExact("9007199254740992") }, remove: [] });
  expect(() => variablesOf("9007199254740993")).toThrow("must be a JSON object");
});
