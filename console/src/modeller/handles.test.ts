import { expect, test } from "vitest";
import { handledEdges } from "./handles";
import { parse } from "./json";

const root = (name: string) => parse(JSON.stringify({ metadata: { workflowModeller: { edgeHandles: { [name]: { sourceHandle: "right" } } } } }));

test("a name takes no longer than it is long, and one that is too long is of no edge", () => {
  const edge = { from: "a", to: "b" };
  const named = (name: string) => handledEdges(root(name), [edge], ["a", "b"]).map((one) => one.edge);
  expect(named("a->b")).toEqual([edge]);
  expect(named("a-".repeat(900) + "b-".repeat(90))).toEqual([edge]);
  expect(named("a-b-".repeat(490))).toEqual([edge]);
  expect(named("a-b-".repeat(600))).toEqual([]);
});
