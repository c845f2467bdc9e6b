import { expect, test } from "vitest";
import { pathOf, readDraft } from "./draft";
import { fixesOf } from "./fixes";

const SERVICE = { type: "SERVICE_TASK", jobType: "work" };
const END = { id: "end", name: "end", type: "END" };

function fixed(steps: unknown[], path: string, text: string): [string[], Record<string, unknown>[]] {
  const before = JSON.stringify({ id: "d", name: "d", steps });
  const fixes = fixesOf({ path, text }, readDraft(before));
  return [fixes.map((fix) => fix.label), fixes[0] ? JSON.parse(fixes[0].to(before)).steps : []];
}

test("paths are read as the engine writes them", () => {
  expect(pathOf('steps[1].conditionalNextSteps["a > \\"1\\""]')).toEqual(["steps", 1, "conditionalNextSteps", 'a > "1"']);
  expect(pathOf("steps[0].boundaryEvents[2].targetStepId")).toEqual(["steps", 0, "boundaryEvents", 2, "targetStepId"]);
  expect(pathOf("steps")).toEqual(["steps"]);
  expect([pathOf('["a.b"]'), pathOf('steps[1]["a b"].c'), pathOf("")]).toEqual([["a.b"], ["steps", 1, "a b", "c"], []]);
});

test("a way to a step that is not there is led to the one that was meant, or removed", () => {
  const [labels, steps] = fixed([{ ...SERVICE, id: "a", nextStep: "edn" }, END], "steps[0].nextStep", 'unknown step "edn"');
  expect(labels).toEqual(["Lead it to end", "Remove it"]);
  expect(steps[0]).toMatchObject({ nextStep: "end" });
  const events = [{ type: "TIMER", duration: "PT1H", targetStepId: "something-else" }];
  const [only, left] = fixed([{ ...SERVICE, id: "a", boundaryEvents: events }, END], "steps[0].boundaryEvents[0].targetStepId", "unknown step");
  expect(only).toEqual(["Remove the event"]);
  expect(left[0]).not.toHaveProperty("boundaryEvents.0");
});

test("a condition of which the engine tells the beginning is found", () => {
  const long = `amount > 1 && ${"x".repeat(80)}`;
  const cut = (text: string) => `steps[0].conditionalNextSteps["${text.slice(0, 80)}…"]`;
  const decide = (...conditions: string[]) => ({ id: "choose", type: "DECISION", conditionalNextSteps: Object.fromEntries([...conditions.map((one) => [one, "edn"]), ["true", "end"]]) });
  const [labels, steps] = fixed([decide(long), END], cut(long), 'unknown step "edn"');
  expect(labels).toEqual(["Lead it to end", "Remove it"]);
  expect(steps[0]!.conditionalNextSteps).toEqual({ [long]: "end", true: "end" });
  expect(fixed([decide(long, `${long}y`), END], cut(long), 'unknown step "edn"')[0]).toEqual([]);
});

test("what is missing is added", () => {
  const gateway = { id: "split", name: "s", type: "PARALLEL_GATEWAY", parallelNextSteps: ["a", "b"] };
  const [labels, steps] = fixed([gateway, END], "steps[0].joinStep", "required");
  expect(labels).toEqual(["Add a join"]);
  expect(steps).toMatchObject([{ joinStep: "join" }, {}, { id: "join", type: "JOIN_GATEWAY", nextStep: "end" }]);
  expect(fixed([{ id: "a", type: "SERVICE_TASK" }, END], "steps[0].jobType", "required")[1][0]).toMatchObject({ jobType: "a" });
  expect(fixed([{ ...SERVICE, id: "a" }], "steps", "no END step can be reached from the first step")[1]).toMatchObject([{ nextStep: "end" }, { id: "end", type: "END" }]);
  expect(fixed([{ id: "d", type: "DECISION", conditionalNextSteps: { a: "end" } }, END], "steps[0].conditionalNextSteps", "where no condition is true")[1][0]).toMatchObject({
    conditionalNextSteps: { a: "end", true: "end" },
  });
});

test("a step that nothing leads to is wired in, made the start, or deleted", () => {
  const told = 'step "lost" cannot be reached';
  const lost = { ...SERVICE, id: "lost" };
  const [begins, started] = fixed([END, lost], "steps[1]", told);
  expect(begins).toEqual(["Make it the start", "Delete the step"]);
  expect(started).toMatchObject([{ id: "lost", nextStep: "end" }, { id: "end" }]);
  const [open, led] = fixed([{ ...SERVICE, id: "a" }, lost, END], "steps[1]", told);
  expect(open).toEqual(["Lead a to it", "Make it the start", "Delete the step"]);
  expect(led[0]).toMatchObject({ id: "a", nextStep: "lost" });
  const [after, put] = fixed([{ ...SERVICE, id: "a", nextStep: "end" }, lost, END], "steps[1]", told);
  expect(after).toEqual(["Put it after a", "Make it the start", "Delete the step"]);
  expect(put).toMatchObject([{ nextStep: "lost" }, { nextStep: "end" }, {}]);
  expect(fixed([{ ...SERVICE, id: "a", nextStep: "end" }, { ...lost, nextStep: "a" }, END], "steps[1]", told)[0]).toEqual(["Make it the start", "Delete the step"]);
  expect(fixed([{ ...SERVICE, id: "a" }, END], "steps[1]", told)[0]).toEqual(["Lead a to it", "Delete the step"]);
  const choose = { id: "d", type: "DECISION", conditionalNextSteps: { true: "end" } };
  const [out, split] = fixed([{ ...SERVICE, id: "a", nextStep: "d" }, choose, END, { ...END, id: "no" }], "steps[3]", told);
  expect(out).toEqual(["Lead d to it", "Delete the step"]);
  expect(Object.entries(split[1]!.conditionalNextSteps as object)).toEqual([["false", "no"], ["true", "end"]]);
});

test("what does not belong there is removed, and a second id becomes another", () => {
  expect(fixed([{ ...SERVICE, id: "a", retries: 1 }, END], "steps[0].retries", "unknown field")[1][0]).not.toHaveProperty("retries");
  expect(fixed([{ ...END, compensation: { jobType: "x" } }], "steps[0].compensation", "is not used")[1][0]).not.toHaveProperty("compensation");
  expect(fixed([END, END], "steps[1].id", "duplicate step id")[1]).toMatchObject([{ id: "end" }, { id: "end-2" }]);
});

test("a duration without a fixed length gets one", () => {
  for (const [written, days] of [["P1M", "P30D"], ["P1Y2M3DT4H", "P428DT4H"], ["P2Y1W", "P737D"]]) {
    const [labels, steps] = fixed([{ ...SERVICE, id: "a", nextStep: "end", retryBackoff: { initial: written } }, END], "steps[0].retryBackoff.initial", "no fixed length");
    expect([labels, steps[0]!.retryBackoff]).toEqual([[`Change to ${days}`], { initial: days }]);
  }
  expect(fixed([{ ...SERVICE, id: "a", nextStep: "end", retryBackoff: { initial: "soon" } }, END], "steps[0].retryBackoff.initial", "no duration")[0]).toEqual([]);
  expect(fixed([{ ...SERVICE, id: "a", nextStep: "end", retryBackoff: { initial: "PT1M" } }, END], "steps[0].retryBackoff.initial", "too short")[0]).toEqual([]);
});
