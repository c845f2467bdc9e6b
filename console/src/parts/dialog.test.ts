import { expect, test } from "vitest";
import { textOf } from "../modeller/json";
import { variablesOf } from "./dialog";

test("text that is not ended is refused at once, however long it is", () => {
  const text = `{"note": "${"x".repeat(100_000)}`;
  expect(() => variablesOf(text)).toThrow("Variables are no JSON");
  expect(() => variablesOf(`${text}\n"}`)).toThrow("Variables are no JSON");
  expect(textOf(variablesOf(`${text}\\u0041"}`).note).length).toBe(100_003);
});
