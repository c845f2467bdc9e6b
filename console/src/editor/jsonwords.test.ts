import { expect, test } from "vitest";
import { bracketsOf, wordsOf } from "./jsonwords";

const TEXT = '{\n  "a b" : [1, -2.5e+3, true, null],\n  "say \\"{\\"": "}: [",\n  "cut';

test("JSON is taken apart into names, values and signs", () => {
  const words = wordsOf(TEXT).filter(({ kind }) => kind !== "punctuation").map(({ kind, from, to }) => [kind, TEXT.slice(from, to)]);
  expect(words).toEqual([
    ["propertyName", '"a b"'],
    ["number", "1"],
    ["number", "-2.5e+3"],
    ["bool", "true"],
    ["null", "null"],
    ["propertyName", '"say \\"{\\""'],
    ["string", '"}: ["'],
    ["string", '"cut'],
  ]);
});

test("brackets find each other, and those in strings are text", () => {
  const text = '{"a": [{"}": "["}], "b": {]}';
  const pairs = bracketsOf(text);
  expect([...pairs].filter(([open, close]) => open < close).map(([open, close]) => text.slice(open, close + 1))).toEqual(['{"}": "["}', '[{"}": "["}]', text]);
});
