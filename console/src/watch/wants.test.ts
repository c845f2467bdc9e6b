import { expect, test } from "vitest";
import { INSTANCES_MAX, type News, NOTHING, tellingOf, unionOf } from "./wants";

const ids = (prefix: string, count: number) => Array.from({ length: count }, (_, at) => `${prefix}${at}`);

test("what tabs want is asked for once", () => {
  const list = { instances: ["a1", "a2"], newerThan: "a2", topics: ["ready" as const] };
  const page = { instances: ["a2"], newerThan: "9f", topics: ["ready" as const, "overview 1h" as const] };
  expect(unionOf([list, page, NOTHING])).toEqual({ instances: ["a1", "a2"], newerThan: "9f", topics: ["ready", "overview 1h"] });
  expect(unionOf([])).toEqual({ instances: [], newerThan: undefined, topics: [] });
});

test("above the engine's bound each tab keeps its first rows", () => {
  const { instances } = unionOf([ids("a", 150), ids("b", 150)].map((instances) => ({ instances, topics: [] })));
  expect(instances).toHaveLength(INSTANCES_MAX);
  expect(instances.filter((id) => id.startsWith("b"))).toEqual(ids("b", 100));
});

test("the first word about an instance is told as such, once to each who watches it", () => {
  const begun = new Set<string>();
  const news: News = { changed: ["a", "b", "elsewhere"], newer: 0, began: true };
  expect(tellingOf(news, ["a", "b"], undefined, begun)).toEqual([{ changed: ["a", "b"], newer: 0, first: true }]);
  // Another tab leads now, and begins again: what happened in between is not known, so both may have changed.
  expect(tellingOf(news, ["a", "b"], undefined, begun)).toEqual([{ changed: ["a", "b"], newer: 0, first: false }]);
  expect(tellingOf({ changed: ["b"], newer: 1, began: false }, ["a", "b"], undefined, begun)).toEqual([{ changed: ["b"], newer: 0, first: false }]);
  expect(tellingOf({ changed: ["c"], newer: 1, began: false }, ["a"], "a", begun)).toEqual([{ changed: [], newer: 1, first: false }]);
  expect(tellingOf({ changed: ["c"], newer: 0, began: false }, ["a"], "a", begun)).toEqual([]);
});
