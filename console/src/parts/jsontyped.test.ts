import { expect, test } from "vitest";
import { flawOf, placeOf } from "./jsontyped";

test.each([
  ['{"amount": 25', "ends where , is due", 1, 14],
  ['{\n  "a": 1,\n  "b": nope\n}', "", 3, 8],
  ["[1]", "a JSON object is due here", 1, 1],
  ["\n 7", "a JSON object is due here", 2, 2],
])("%j is amiss at its line and column", (text, reason, line, column) => {
  const flaw = flawOf(text)!;
  expect(flaw.text).toContain(reason);
  expect(placeOf(text, flaw.at)).toEqual({ line, column });
});

test.each(["", "  ", "{}", '{"n": 9007199254740993}'])("%j is none", (text) => {
  expect(flawOf(text)).toBeUndefined();
});
