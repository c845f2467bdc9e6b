import { expect, test } from "vitest";
import { type Held, latest, timeAfter } from "./clipboard";

const held = (text: string, at: number, inside = false): Held => ({ text, at, inside, owner: "ann" });

test("what was copied later counts, in whichever order tabs tell of it", () => {
  const [first, second] = [held("[1]", 5), held("[2]", 6)];
  expect([latest(undefined, first), latest(first, second), latest(second, first)]).toEqual([first, second, second]);
});

test("of one copying what is told last counts", () => {
  const [before, after] = [held("[1]", 5, true), held("[1]", 5)];
  expect(latest(before, after)).toBe(after);
  // Somebody has copied elsewhere while the browser was asked.
  expect(latest(held("[2]", 6), after).text).toBe("[2]");
});

test("a clock that went back does not keep what is copied from being the last", () => {
  expect([timeAfter(undefined, 7), timeAfter(held("[1]", 5), 7), timeAfter(held("[1]", 9), 7)]).toEqual([7, 7, 10]);
});
