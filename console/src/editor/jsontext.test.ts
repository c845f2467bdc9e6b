import { EditorState } from "@codemirror/state";
import { expect, test } from "vitest";
import { drawn } from "./jsontext";

test("parts of a long line that are in sight are coloured once, in order", () => {
  const state = EditorState.create({ doc: `${JSON.stringify(Array.from({ length: 40 }, (_, n) => ({ [`k${n}`]: n })))}\n{}` });
  const [line, other] = [state.doc.line(1), state.doc.line(2)];
  const places: number[] = [];
  const visibleRanges = [{ from: 0, to: 50 }, { from: 90, to: 110 }, { from: 300, to: line.to }, { from: other.from, to: other.to }];
  drawn({ state, visibleRanges }).between(0, state.doc.length, (from) => void places.push(from));
  expect(places).toEqual([...new Set(places)].sort((one, two) => one - two));
  expect(places.filter((at) => at >= 110 && at < 290)).toEqual([]);
  for (const { from, to } of visibleRanges) expect(places.filter((at) => at >= from && at < to).length).toBeGreaterThan(1);
});
