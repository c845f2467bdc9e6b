import { expect, test } from "vitest";
import { answered } from "./expression";

test("what is wrong is told of the characters that it is about", () => {
  const expression = '"😀" + (nothing';
  const { problem } = answered('{"ok": false, "identifiers": [], "problem": {"reason": "odd", "from": 7, "to": 14}}', expression);
  expect(expression.slice(problem!.from, problem!.to)).toBe("nothing");
});
