import { expect, test } from "vitest";
import { rangeOf, readDraft, sharedIds } from "./draft";
import { parse } from "./json";

const DOLLAR = "$";

test("what can't be read is found at its character, however it is written", () => {
  const text = String.raw`{"id": "a", "steps": [{"id": "b", "conditionalNextSteps": {"'\u0041\ud83d\ude00' + (wrong": "b"}, "until": "${DOLLAR}{'\"😀' in rest}", "duration": 4}]}`;
  const draft = readDraft(text);
  const told = (path: string, at?: number) => {
    const { start, end } = rangeOf(draft, path, at);
    return text.slice(start, end);
  };
  const condition = `steps[0].conditionalNextSteps["'A😀' + (wrong"]`;
  expect([told(condition), told(condition, 1), told(condition, 2), told(condition, 5), told(condition, 8), told(condition, 13)]).toEqual(['"b"', String.raw`\u0041`, String.raw`\ud83d\ude00`, "+", "wrong", ""]);
  expect([told("steps[0].until", 3), told("steps[0].until", 4), told("steps[0].until", 7)]).toEqual([String.raw`\"`, "😀", "in"]);
  expect([told("steps[0].duration", 0), told("steps[0].gone", 2), told("steps[0].id")]).toEqual(["4", told("steps[0]"), '"b"']);
});

test("an id that two steps have is found at both places, in the order of the text", () => {
  const text = `{"steps": [{"id": "a"}, {"name": "a", "id": "b"}, {"id": "\\u0061"}, {"id": ""}, {"id": ""}, 7, {"id": 4}, {"id": 4}]}`;
  const shared = (of: string) => sharedIds(parse(of)).map(({ start, end }) => of.slice(start, end));
  expect(shared(text)).toEqual(['"a"', '"\\u0061"']);
  expect(shared(text.replace('"b"', '"a"'))).toEqual(['"a"', '"a"', '"\\u0061"']);
  expect([shared(`{"steps": {"a": {"id": "a"}}}`), shared("[]")]).toEqual([[], []]);
});
