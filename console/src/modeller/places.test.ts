import { expect, test } from "vitest";
import { pathOf, readDraft } from "./draft";
import { fieldAt, nameOfPlace } from "./places";

const timer = { type: "TIMER", duration: "P1M", targetStepId: "gone" };
const task = { id: "pay", name: "Pay", type: "SERVICE_TASK", jobType: "pay", nextStep: "end", boundaryEvents: [timer, 7], forEach: { items: "1 +" }, odd: { a: 1 } };
const call = { id: "call", name: "Call", type: "CALL_ACTIVITY", definitionId: "other", input: { "a b": "${", list: [1, "${"] }, nextStep: "end" };
const split = { id: "split", name: "Split", type: "PARALLEL_GATEWAY", parallelNextSteps: ["pay", "gone"], joinStep: "join" };
const choose = { id: "choose", name: "Choose", type: "DECISION", conditionalNextSteps: { "a >": "end", true: "gone" } };
const ask = { id: "ask", name: "Ask", type: "USER_TASK", nextStep: "end" };
const form = { summary: "a +", schema: { type: "object", properties: { a: { type: "text", title: "A" } }, required: ["a", "b"] } };
const metadata = { forms: { ask: form, pay: form }, other: { deep: 1 } };
const draft = readDraft(JSON.stringify({ id: "d", name: "d", odd: 1, metadata, steps: [task, call, split, choose, ask, { id: "end", name: "End", type: "END" }, { type: "END" }] }));

test.each([
  // A field of a step, and of what is in it: branches, conditions, boundary events, mappings, forms.
  ["steps[0].jobType", "steps[0].jobType"],
  ["steps[0].boundaryEvents[0].duration", "steps[0].boundaryEvents[0].duration"],
  ["steps[0].boundaryEvents[0].interrupting", "steps[0].boundaryEvents[0].interrupting"],
  ["steps[0].boundaryEvents[1].type", "steps[0].boundaryEvents[1]"],
  ["steps[0].forEach.items", "steps[0].forEach.items"],
  ["steps[1].input[\"a b\"]", "steps[1].input[\"a b\"]"],
  ["steps[1].input.list[1]", "steps[1].input.list"],
  ["steps[2].parallelNextSteps[1]", "steps[2].parallelNextSteps[1]"],
  ["steps[2].parallelNextSteps[9]", "steps[2].parallelNextSteps"],
  ["steps[3].conditionalNextSteps[\"a >\"]", "steps[3].conditionalNextSteps[\"a >\"]"],
  ["metadata.forms.ask.summary", "metadata.forms.ask.summary"],
  ["metadata.forms.ask.schema.required[1]", "metadata.forms.ask.schema.required[1]"],
  ["metadata.forms.ask.schema.properties.a.type", "metadata.forms.ask.schema.properties.a.type"],
  // What has no field stands where it belongs.
  ["steps[0].odd.a", "steps[0].odd"],
  ["steps[0].transformations", "steps[0]"],
  ["steps[1]", "steps[1]"],
  ["steps[17].id", ""],
  ["steps", ""],
  ["name", "name"],
  ["odd", "odd"],
  ["strange.a", ""],
  ["metadata.other.deep", "metadata"],
  ["metadata.forms.pay.summary", "metadata"],
  ["", ""],
])("%s is told at %s", (written, place) => {
  expect(fieldAt(draft, pathOf(written))).toEqual(pathOf(place));
});

test("a place keeps its name when steps before it come", () => {
  const later = readDraft(draft.text.replace('"steps":[', '"steps":[{"id":"first","type":"END"},'));
  expect(nameOfPlace(draft.root, ["steps", 0, "jobType"])).toBe(nameOfPlace(later.root, ["steps", 1, "jobType"]));
  expect(nameOfPlace(draft.root, ["steps", 6, "name"])).toBe('["steps",6,"name"]');
});
