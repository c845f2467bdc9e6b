import { expect, test } from "vitest";
import type { Definition, Step } from "../api/client";
import { changesOf, unionOf } from "./diff";

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

test("what went stays where it stood", () => {
  const union = unionOf(of(step("a"), step("b"), step("c")), of(step("a"), step("x", { retryCount: 3 }), step("c")));
  expect(union.steps.map((one) => one.id)).toEqual(["a", "b", "x", "c"]);
});

test("what has another id stands in the picture once", () => {
  const union = unionOf(of(step("a"), step("pay", { jobType: "p" }), step("c")), of(step("a"), step("charge", { jobType: "p" }), step("c")));
  expect(union.steps.map((one) => one.id)).toEqual(["a", "charge", "c"]);
});
