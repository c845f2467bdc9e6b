import { expect, test } from "vitest";
import type { Definition, Step } from "../api/client";
import { changesOf, halfOf, linesOf, notesOf, summaryOf, unionOf } from "./diff";
import type { Layout } from "./layout";

const step = (id: string, more: Partial<Step> = {}): Step => ({ id, name: "", type: "SERVICE_TASK", jobType: "work", ...more }) as Step;
const of = (...steps: Step[]): Definition => ({ id: "d", name: "d", steps });

test("steps that came, went and changed are told, with the fields that differ", () => {
  const before = of(step("a", { nextStep: "b" }), step("b", { nextStep: "c", jobType: "other" }), step("c"));
  const after = of(step("a", { nextStep: "x" }), step("x", { nextStep: "c", retryCount: 3 }), step("c"));
  expect(changesOf(before, after).map(({ id, how, fields }) => [id, how, fields])).toEqual([
    ["a", "changed", ["nextStep"]],
    ["x", "added", []],
    ["b", "removed", []],
  ]);
  expect(changesOf(before, before)).toEqual([]);
});

test("a step that is the same but for its id was renamed", () => {
  const [change] = changesOf(of(step("pay", { jobType: "p" })), of(step("charge", { jobType: "p" })));
  expect(change).toMatchObject({ id: "charge", how: "renamed", before: "pay" });
});

test("the order of conditions is their meaning", () => {
  const before = of(step("a", { conditionalNextSteps: { x: "b", y: "c" } }));
  const after = of(step("a", { conditionalNextSteps: { y: "c", x: "b" } }));
  expect(changesOf(before, after)).toMatchObject([{ how: "changed", fields: ["conditionalNextSteps"] }]);
});

const union = (before: Definition, after: Definition) => unionOf(before, after, changesOf(before, after));

test("what went stays where it stood", () => {
  const { definition } = union(of(step("a"), step("b"), step("c")), of(step("a"), step("x", { retryCount: 3 }), step("c")));
  expect(definition.steps.map((one) => one.id)).toEqual(["a", "b", "x", "c"]);
});

test("what has another id stands in the picture once", () => {
  const { definition } = union(of(step("a"), step("pay", { jobType: "p" }), step("c")), of(step("a"), step("charge", { jobType: "p" }), step("c")));
  expect(definition.steps.map((one) => one.id)).toEqual(["a", "charge", "c"]);
});

/** As if laid out: the nth step stands at (0, n). */
function laidOut({ definition, edges }: ReturnType<typeof union>): Layout {
  return {
    width: 1,
    height: 1,
    nodes: definition.steps.map((step, y) => ({ step, x: 0, y, width: 1, height: 1 })),
    edges: edges.map((edge, x) => ({ edge, points: [{ x, y: 0 }] })),
  };
}

test("each of the two has its own steps and ways, and what both have stands at one place", () => {
  const before = of(step("a", { nextStep: "b" }), step("b", { nextStep: "pay" }), step("pay", { jobType: "p", nextStep: "end" }), step("end", { jobType: "e" }));
  const after = of(step("a", { nextStep: "x" }), step("x", { retryCount: 1, nextStep: "charge" }), step("charge", { jobType: "p", nextStep: "end" }), step("end", { jobType: "e" }));
  const both = union(before, after);
  const [old, now] = [halfOf(laidOut(both), before, both.renamed), halfOf(laidOut(both), after)];
  expect(old.nodes.map(({ step, y }) => [step.id, y])).toEqual([["a", 0], ["b", 1], ["pay", 3], ["end", 4]]);
  expect(now.nodes.map(({ step, y }) => [step.id, y])).toEqual([["a", 0], ["x", 2], ["charge", 3], ["end", 4]]);
  expect(old.edges.map(({ edge }) => `${edge.from} ${edge.to}`)).toEqual(["a b", "b pay", "pay end"]);
  expect(now.edges.map(({ edge }) => `${edge.from} ${edge.to}`)).toEqual(["a x", "x charge", "charge end"]);
  expect(old.edges.at(-1)!.points).toEqual(now.edges.at(-1)!.points);
  expect(both.edges.map(({ id }) => id)).toEqual(["e0", "e1", "e2", "e3", "e4"]);
});

test("changes are counted in one line, and told line by line", () => {
  const before = of(step("a", { retryCount: 5, conditionalNextSteps: { "n > 1": "b", true: "c" } }), step("b", { jobType: "b" }), step("c"));
  const after = of(step("a", { retryCount: 9, conditionalNextSteps: { "n > 2": "b", true: "c" } }), step("new", { conditionalNextSteps: { ok: "b" } }), step("beta", { jobType: "b" }));
  const changes = changesOf(before, after);
  expect(summaryOf(changes)).toBe("1 step added, 1 changed, 1 renamed, 1 removed");
  expect(summaryOf([])).toBe("no step added, none changed, none removed");
  expect(changes.map((one) => linesOf(one, before, after).map(({ sign, text }) => `${sign} ${text}`))).toEqual([
    ["- retryCount 5", "+ retryCount 9", "- n > 1 → b", "+ n > 2 → b"],
    ["+ ok → b"],
    ["- id b", "+ id beta"],
    [],
  ]);
  const turned = of(step("a", { retryCount: 5, conditionalNextSteps: { true: "c", "n > 1": "b" } }));
  const [moved] = changesOf(before, turned);
  expect(linesOf(moved!, before, turned)).toHaveLength(4);
});

test("either picture marks its own steps, the old one with what stands there", () => {
  const before = of(step("a"), step("pay", { jobType: "p" }), step("c", { retryCount: 1 }), step("z", { jobType: "z" }));
  const after = of(step("a"), step("charge", { jobType: "p" }), step("c", { retryCount: 2 }), step("x", { jobType: "x" }));
  const notes = notesOf(changesOf(before, after), new Map([["pay", 1288], ["a", 1]]));
  expect([...notes.before].map(([id, { mark, open, word }]) => [id, mark, open, word])).toEqual([
    ["pay", "renamed", "1,288", "1,288 open, renamed, was pay"],
    ["c", "changed", undefined, "changed: retryCount"],
    ["z", "removed", undefined, "removed"],
    ["a", undefined, "1", "1 open"],
  ]);
  expect([...notes.after].map(([id, { mark, look }]) => [id, mark, look])).toEqual([
    ["charge", "renamed", "changed"],
    ["c", "changed", "changed"],
    ["x", "added", "added"],
  ]);
});
