import { expect, test } from "vitest";
import LOAN from "../../../examples/loan-process.json?raw";
import { edgesOf } from "../graph/edges";
import { definitionOf, placeOf, readDraft } from "./draft";
import { addStep, connect, copySteps, disconnect, EMPTY, pasteSteps, pin, removeSteps, renameStep, successorsOf, tidy } from "./edits";
import { nodeAt, parse, pretty, valueOf } from "./json";
import { STEP_TYPES } from "./language";
import { sound } from "./people";

const stepsOf = (text: string) => (valueOf(parse(text)) as { steps: Record<string, unknown>[] }).steps;
const stepOf = (text: string, id: string) => stepsOf(text).find((step) => step.id === id);

test("a step comes between the selected one and the one after it", () => {
  const { text, id } = addStep(LOAN, "SERVICE_TASK", "approve");
  expect(stepOf(text, "approve")!.nextStep).toBe(id);
  expect(stepOf(text, id)!.nextStep).toBe(stepOf(LOAN, "approve")!.nextStep);
  expect(removeSteps(text, [id], successorsOf(text, [id])[0])).toBe(LOAN);
});

test("a step after an END comes before it", () => {
  const { text, id } = addStep(EMPTY, "SERVICE_TASK", "end");
  expect(stepsOf(text).map((step) => [step.id, step.nextStep])).toEqual([[id, "end"], ["end", undefined]]);
});

test("of every type one can be added, and taken out again", () => {
  for (const type of STEP_TYPES) {
    const { text, id } = addStep(LOAN, type, "decide");
    expect(stepOf(text, id)!.type).toBe(type);
    expect(stepOf(text, id)!.name, "NAMES has it").not.toBe(id);
    const ids = stepsOf(text).flatMap((step) => (stepOf(LOAN, String(step.id)) ? [] : [String(step.id)]));
    expect(stepsOf(removeSteps(text, ids, undefined))).toEqual(stepsOf(LOAN));
  }
});

test("a parallel block has branches that meet", () => {
  const { text, id } = addStep(EMPTY, "PARALLEL_GATEWAY", "end");
  const gateway = stepOf(text, id)!;
  const branches = gateway.parallelNextSteps as string[];
  expect(branches.map((branch) => stepOf(text, branch)!.nextStep)).toEqual([gateway.joinStep, gateway.joinStep]);
  expect(stepOf(text, String(gateway.joinStep))!.nextStep).toBe("end");
});

test("a new id is followed everywhere", () => {
  const pinned = pin(LOAN, new Map([["decline", { x: 10.4, y: 20 }]]));
  const text = renameStep(pinned, "decline", "refuse");
  expect(JSON.stringify(stepsOf(text))).not.toContain('"decline"');
  expect(nodeAt(parse(text), ["metadata", "workflowModeller", "layout", "refuse", "x"])?.value).toBe(10);
  expect(renameStep(text, "refuse", "decline")).toBe(pinned);
  expect(renameStep(LOAN, "decline", "approve")).toBe(LOAN);
  expect(tidy(pinned)).toBe(LOAN);
});

test("ways are drawn and taken away", () => {
  const drawn = connect(LOAN, "decide", "finished");
  expect(Object.entries(stepOf(drawn, "decide")!.conditionalNextSteps as object).at(-2)).toEqual(["false", "finished"]);
  const edge = readDraft(drawn).edges.find((one) => one.from === "decide" && one.to === "finished")!;
  expect(disconnect(drawn, edge)).toBe(LOAN);
  expect(connect(LOAN, "finished", "decide")).toBe(LOAN);
  const reminder = readDraft(LOAN).edges.find((one) => one.kind === "timer")!;
  expect(nodeAt(parse(disconnect(LOAN, reminder)), reminder.path.slice(0, -1))?.start).not.toBe(nodeAt(parse(LOAN), reminder.path.slice(0, -1))?.start);
});

test("without another step to lead to, ways to a step that goes, go", () => {
  const text = removeSteps(LOAN, ["decline"], undefined);
  expect(JSON.stringify(stepsOf(text))).not.toContain('"decline"');
  const second = String(stepsOf(LOAN)[1]!.id);
  expect(stepsOf(removeSteps(LOAN, [String(stepsOf(LOAN)[0]!.id)], second))[0]!.id).toBe(second);
});

test("copied steps come in under ids that are free, and name each other", () => {
  const { text, ids } = pasteSteps(LOAN, copySteps(LOAN, ["approve", "send-contract"]));
  expect(ids).toEqual(["approve-2", "send-contract-2"]);
  expect(stepOf(text, "approve-2")!.nextStep).toBe("send-contract-2");
  expect(pasteSteps(EMPTY, "[]").text).toBe(EMPTY);
});

test("a draft of any shape can be drawn", () => {
  for (const text of ["3", "[]", "{}", '{"steps": 1}', '{"steps": [1, {}, {"id": 5}, {"id": "a", "nextStep": 7}, {"id": "a"}]}', '{"steps": [{"id": "__proto__", "type": "constructor", "nextStep": "toString"}]}'])
    expect([readDraft(text).edges, edgesOf(definitionOf(readDraft(text)))]).toEqual([[], []]);
  const strange = '{"steps": [{"id": "a", "parallelNextSteps": "x", "boundaryEvents": [null, 5], "conditionalNextSteps": [1]}]}';
  expect(edgesOf(definitionOf(readDraft(strange)))).toEqual([]);
  expect(placeOf('steps[12].conditionalNextSteps["a > 1"]')).toEqual({ step: 12, field: "conditionalNextSteps" });
  expect(placeOf("name")).toEqual({ field: "name" });
});

test("what is half a form is shown as far as it is one", () => {
  const written = { type: "object", required: 5, properties: { a: { type: "string", pattern: 3, enum: "x" }, b: 7, c: { minimum: 1, required: ["d", 4], properties: null } } };
  expect(sound(written)).toEqual({ type: "object", properties: { a: { type: "string" }, b: {}, c: { minimum: 1, required: ["d"] } } });
});

test("a thousand random definitions keep every character that no edit was about", { timeout: 120_000 }, () => {
  const random = dice(7);
  for (let round = 0; round < 1000; round++) {
    const text = JSON.stringify(randomDefinition(random), null, [0, 1, 2, 4][round % 4]);
    const draft = readDraft(text);
    expect(JSON.parse(pretty(text))).toEqual(JSON.parse(text));
    const id = draft.definition.steps[random(draft.definition.steps.length)]!.id;
    expect(renameStep(renameStep(text, id, "another name"), "another name", id)).toBe(text);
    expect(tidy(pin(text, new Map([[id, { x: 1, y: 2 }]])))).toBe(text);
    const made = addStep(text, STEP_TYPES[random(STEP_TYPES.length)]!);
    const extra = stepsOf(made.text).slice(draft.places.size).map((step) => String(step.id));
    expect(removeSteps(made.text, extra, undefined)).toBe(text);
  }
});

/** Numbers below a bound, the same each time. */
function dice(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return Math.floor((state / 2147483648) * below);
  };
}

function randomDefinition(random: (below: number) => number): object {
  const ids = Array.from({ length: 2 + random(8) }, (_, at) => `s${at}`);
  const some = () => ids[random(ids.length)]!;
  const ways = () => Object.fromEntries(Array.from({ length: 1 + random(3) }, (_, at) => [at ? `n > ${random(9)}` : "true", some()]));
  const steps = ids.map((id, at) => {
    const type = at === ids.length - 1 ? "END" : STEP_TYPES[random(STEP_TYPES.length)]!;
    return {
      id,
      name: ["a", "é \"", "\\u0041\n", "🦉"][random(4)],
      type,
      ...(random(2) ? { nextStep: some() } : {}),
      ...(random(3) ? {} : { conditionalNextSteps: ways() }),
      ...(random(4) ? {} : { parallelNextSteps: [some(), some()], joinStep: some() }),
      ...(random(4) ? {} : { boundaryEvents: [{ type: "TIMER", duration: "PT1S", targetStepId: some() }] }),
      ...(random(4) ? {} : { unknown: { [some()]: [1e21, -0.5, null, {}] } }),
    };
  });
  return { id: "random", name: "Random", steps, ...(random(2) ? { metadata: { forms: {}, "10": 1, owner: [] } } : {}) };
}
