import { expect, test } from "vitest";
import { changesOf } from "./edit";

test("only what differs is sent", () => {
  expect(changesOf({ a: 1, b: { x: [1] }, c: null }, { a: 2, b: { x: [1] }, d: 0 })).toEqual({ set: { a: 2, d: 0 }, remove: ["c"] });
});

test("nothing changed is nothing to send, and names of Object's own are ordinary", () => {
  expect(changesOf({ toString: 1 }, { toString: 1 })).toEqual({ set: {}, remove: [] });
  expect(changesOf({}, { constructor: 1 })).toEqual({ set: { constructor: 1 }, remove: [] });
});
