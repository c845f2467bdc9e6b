import { describe, expect, it } from "vitest";
import type { Definition, Execution } from "../api/client";
import { edgesOf, statesOf, takenOf } from "./edges";

const definition = {
  id: "d",
  version: 1,
  name: "d",
  steps: [
    { id: "fork", name: "", type: "PARALLEL_GATEWAY", parallelNextSteps: ["a", "b"], joinStep: "join" },
    { id: "a", name: "", type: "SERVICE_TASK", nextStep: "join", boundaryEvents: [{ type: "TIMER", duration: "PT5M", interrupting: false, targetStepId: "late" }] },
    { id: "b", name: "", type: "DECISION", conditionalNextSteps: { "x > 1": "late", true: "join" } },
    { id: "late", name: "", type: "SERVICE_TASK", nextStep: "join" },
    { id: "join", name: "", type: "JOIN_GATEWAY", nextStep: "end" },
    { id: "end", name: "", type: "END" },
  ],
} as unknown as Definition;

const entry = (stepId: string, startedAt: string, endedAt?: string, status = endedAt ? "COMPLETED" : "RUNNING") => ({ id: `${stepId}${startedAt}`, stepId, status, startedAt, endedAt }) as unknown as Execution;

describe("edges", () => {
  it("of every kind, with labels as they are read", () => {
    expect(edgesOf(definition).map((edge) => [edge.from, edge.to, edge.kind, edge.label])).toEqual([
      ["fork", "a", "par", undefined],
      ["fork", "b", "par", undefined],
      ["a", "join", "next", undefined],
      ["a", "late", "timer", "5m"],
      ["b", "late", "cond", "x > 1"],
      ["b", "join", "else", "otherwise"],
      ["late", "join", "next", undefined],
      ["join", "end", "next", undefined],
    ]);
  });

  it("are taken where one transaction left a step and entered the next, and all that came into a join", () => {
    const history = [entry("fork", "1", "1"), entry("a", "1", "5"), entry("b", "1", "1"), entry("join", "1", "5"), entry("end", "5", "5")];
    expect([...takenOf(definition, history)].sort()).toEqual(["a>join", "b>join", "fork>a", "fork>b", "join>end"]);
  });

  it("are not taken out of a step that is open or failed", () => {
    expect([...takenOf(definition, [entry("fork", "1", "1"), entry("a", "1"), entry("b", "1", "2", "FAILED")])].sort()).toEqual(["fork>a", "fork>b"]);
  });

  it("are taken where an error or a timer ended a step and led elsewhere, the step's own way to the same one not", () => {
    const boundaryEvents = [
      { type: "ERROR", targetStepId: "mend" },
      { type: "TIMER", duration: "PT1H", targetStepId: "end" },
    ];
    const steps = [
      { id: "call", name: "", type: "CALL_ACTIVITY", nextStep: "end", boundaryEvents },
      { id: "mend", name: "", type: "USER_TASK", nextStep: "end" },
      { id: "end", name: "", type: "END" },
    ];
    const calling = { ...definition, steps } as unknown as Definition;
    expect([...takenOf(calling, [entry("call", "1", "2", "FAILED"), entry("mend", "2")])]).toEqual(["call!mend"]);
    expect([...takenOf(calling, [entry("call", "1", "2", "FAILED"), entry("end", "2", "2")])]).toEqual(["call!end"]);
    expect([...takenOf(calling, [entry("call", "1", "2"), entry("end", "2", "2")])]).toEqual(["call>end"]);
  });
});

describe("states", () => {
  it("count entries and tell waiting from running", () => {
    const states = statesOf(definition, [entry("a", "1", "2"), entry("a", "3"), entry("join", "2")]);
    expect(states.get("a")).toEqual({ look: "run", times: 2 });
    expect(states.get("join")?.look).toBe("wait");
  });
});
