import { expect, test } from "vitest";
import { forgetLayouts, keptOrMade, keyOf } from "./kept";

test("what is laid out otherwise has another key", () => {
  const texts = ["a", "b", "ab", "ba", "a".repeat(5_000), `${"a".repeat(4_999)}b`];
  expect(new Set(texts.map(keyOf)).size).toBe(texts.length);
  expect(keyOf("ab")).toBe(keyOf("ab"));
});

test("without IndexedDB it is made each time, and nothing fails", async () => {
  let made = 0;
  const make = async () => ++made;
  expect([await keptOrMade("graph", make), await keptOrMade("graph", make)]).toEqual([1, 2]);
  await forgetLayouts();
});
