import { expect, test } from "vitest";
import LOAN from "../../../examples/loan-process.json?raw";
import { edgesOf } from "../graph/edges";
import { definitionOf, LAYOUT, readDraft } from "./draft";
import { aligned } from "./align";
import { addBoundary, addStep, beginElsewhere, connect, copySteps, disconnect, EMPTY, HTTP_REQUEST, insertOnWay, leadElsewhere, makeFirst, mayHang, pasteSteps, pin, removeSteps, renameStep, renameStepAsTyped, successorsOf, tidy } from "./edits";
import { EDGE_HANDLES } from "./handles";
import { nodeAt, parse, pretty, set, valueOf } from "./json";
import { referencesOf, STEP, STEP_TYPES, type Schema } from "./language";
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

test("an HTTP request is a job of the ready worker, and the step that sets what it is", () => {
  const { text, id } = addStep(EMPTY, HTTP_REQUEST, "end");
  const [set, request] = stepsOf(text);
  expect([set!.id, set!.nextStep, request!.nextStep, request!.jobType]).toEqual([id, request!.id, "end", "http.request"]);
  expect(Object.keys(set!.transformations as object)).toEqual([request!.id]);
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

test("a job type that came with the step goes with its id, and one that somebody chose does not", () => {
  const { text, id } = addStep(EMPTY, "SERVICE_TASK", "end");
  expect(stepOf(renameStepAsTyped(text, id, "charge"), "charge")!.jobType).toBe("charge");
  const chosen = renameStepAsTyped(set(text, ["steps", 0, "jobType"], "pay"), id, "charge");
  expect(stepOf(chosen, "charge")!.jobType).toBe("pay");
  expect(stepOf(renameStepAsTyped(chosen, "charge", "debit"), "debit")!.jobType).toBe("pay");
  // Workers know the types of what was uploaded, also one that is called as its step.
  const own = set(chosen, ["steps", 0, "jobType"], "charge");
  expect(stepOf(renameStepAsTyped(own, "charge", "debit"), "debit")!.jobType).toBe("charge");
  const escalated = addBoundary(renameStepAsTyped(text, id, "charge"), "TIMER", "charge");
  const escalate = renameStepAsTyped(escalated, "task", "escalate");
  expect(stepOf(escalate, "escalate")!.jobType).toBe("escalate");
  expect([renameStepAsTyped(escalated, "task", "charge"), renameStepAsTyped(escalated, "task", "task")]).toEqual([escalated, escalated]);
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

test("both ends of a way lead elsewhere", () => {
  const way = (text: string, from: string, to: string) => readDraft(text).edges.find((one) => one.from === from && one.to === to)!;
  const condition = way(LOAN, "decide", "approve");
  expect(leadElsewhere(LOAN, condition, "finished")).toBe(LOAN.replace(/("conditionalNextSteps": \{[^}]*?": )"approve"/, '$1"finished"'));
  const { text, id } = addStep(LOAN, "DECISION", "approve");
  const begun = beginElsewhere(text, way(text, "decide", "approve"), id);
  expect(Object.entries(stepOf(begun, id)!.conditionalNextSteps as object)[0]).toEqual([condition.path[3], "approve"]);
  expect(stepOf(begun, "decide")!.conditionalNextSteps).not.toHaveProperty([String(condition.path[3])]);
  const timer = readDraft(LOAN).edges.find((one) => one.kind === "timer")!;
  const hung = readDraft(beginElsewhere(LOAN, timer, "send-contract")).edges.find((one) => one.from === "send-contract" && one.to === timer.to)!;
  expect([hung.from, hung.to, hung.label]).toEqual(["send-contract", timer.to, timer.label]);
  expect(beginElsewhere(LOAN, timer, "decide")).toBe(LOAN);
  expect(beginElsewhere(LOAN, condition, "finished")).toBe(LOAN);
});

test("timers and errors hang on steps that may have them", () => {
  const text = addBoundary(addBoundary(LOAN, "TIMER", "send-contract", "decline"), "ERROR", "send-contract");
  const after = readDraft(text).edges.filter((one) => one.from === "send-contract").slice(-2);
  expect(after.map((one) => [one.kind, one.to])).toEqual([["timer-int", "decline"], ["error", "task"]]);
  expect(stepOf(text, "task")).toMatchObject({ type: "SERVICE_TASK", nextStep: stepOf(LOAN, "send-contract")!.nextStep });
  expect(stepOf(addBoundary(LOAN, "TIMER", "send-contract", undefined, { duration: "P1D", interrupting: false }), "task")).not.toHaveProperty("nextStep");
  expect(addBoundary(LOAN, "TIMER", "decide")).toBe(LOAN);
  expect([mayHang(LOAN, "decide"), mayHang(LOAN, "send-contract"), mayHang(LOAN, "nobody")]).toEqual([false, true, false]);
});

test("another step is the start, and leads to the one that was if it leads nowhere", () => {
  const lost = addStep(LOAN, "SERVICE_TASK");
  const [first, second] = stepsOf(makeFirst(lost.text, lost.id));
  expect([first!.id, first!.nextStep, second!.id]).toEqual([lost.id, stepsOf(LOAN)[0]!.id, stepsOf(LOAN)[0]!.id]);
  expect(stepsOf(makeFirst(LOAN, "approve"))[0]).toEqual(stepOf(LOAN, "approve"));
  expect(makeFirst(LOAN, String(stepsOf(LOAN)[0]!.id))).toBe(LOAN);
});

test("a step comes into a way", () => {
  const way = readDraft(LOAN).edges.find((one) => one.kind === "else")!;
  for (const type of STEP_TYPES) {
    const { text, id } = insertOnWay(LOAN, type, way);
    expect(nodeAt(parse(text), way.path)?.value).toBe(id);
    if (type !== "END") expect(readDraft(text).edges.filter((one) => one.to === way.to).length).toBe(readDraft(LOAN).edges.filter((one) => one.to === way.to).length);
  }
});

test("sides of the existing modeller go with their steps", () => {
  const handles = { "approve->send-contract": { sourceHandle: "s-right", targetHandle: "left" }, "e-decide-approve-0": { sourceHandle: "bottom", targetHandle: null }, nothing: {} };
  const text = set(LOAN, EDGE_HANDLES, handles);
  const sides = (of: string) => Object.fromEntries(readDraft(of).edges.flatMap((one) => (one.sides ? [[`${one.from} ${one.to}`, one.sides]] : [])));
  expect(sides(text)).toEqual({ "approve send-contract": { from: "right", to: "left" }, "decide approve": { from: "bottom" } });
  const renamed = renameStep(text, "approve", "accept");
  expect(sides(renamed)).toEqual({ "accept send-contract": { from: "right", to: "left" }, "decide accept": { from: "bottom" } });
  expect(renameStep(renamed, "accept", "approve")).toBe(text);
  expect(sides(removeSteps(text, ["send-contract"], "finished"))).toEqual({ "decide approve": { from: "bottom" } });
  expect(tidy(text)).toBe(LOAN);
});

test("a drawing of the existing modeller has the sides that it has there", () => {
  const conditions = { "desktop > 1": "pay", "n == 'left'": "pay", true: "all" };
  const steps = [
    { id: "pick", name: "Pick", type: "DECISION", conditionalNextSteps: conditions },
    { id: "pay", name: "Pay", type: "SERVICE_TASK", nextStep: "end", boundaryEvents: ["PT1H", "PT2H"].map((duration) => ({ type: "TIMER", duration, interrupting: false, targetStepId: "end" })) },
    { id: "all", name: "All", type: "PARALLEL_GATEWAY", parallelNextSteps: ["a", "b"], joinStep: "met" },
    ...["a", "b"].map((id) => ({ id, name: id, type: "SERVICE_TASK", nextStep: "met" })),
    { id: "met", name: "Met", type: "JOIN_GATEWAY", nextStep: "end" },
    { id: "end", name: "End", type: "END" },
  ];
  // The names of ways, and of the places where they end, as it writes them.
  const handles = {
    "pick--conditional:n == 'left'-->pay": { sourceHandle: "branch:n == 'left'", targetHandle: "in-top" },
    "pick--conditional:desktop > 1-->pay": { sourceHandle: "branch:desktop > 1", targetHandle: "in" },
    "pay--boundary:1-->end": { sourceHandle: "out-bottom", targetHandle: "in-bottom" },
    "pay--sequential-->end": { sourceHandle: "out", targetHandle: "in" },
    "all--parallel-->b": { sourceHandle: "parallel:1", targetHandle: "in-right" },
    "met--join-out-->end": { sourceHandle: "out-left", targetHandle: null },
  };
  const text = set(JSON.stringify({ id: "drawn", name: "Drawn", steps }), EDGE_HANDLES, handles);
  const sides = (of: string) => Object.fromEntries(readDraft(of).edges.flatMap(({ path, sides }) => (sides ? [[path.slice(1).join(" "), [sides.from, sides.to]]] : [])));
  expect(sides(text)).toEqual({
    "0 conditionalNextSteps n == 'left'": ["right", "top"],
    "0 conditionalNextSteps desktop > 1": ["right", "left"],
    "1 boundaryEvents 1 targetStepId": ["bottom", "bottom"],
    "1 nextStep": ["right", "left"],
    "2 parallelNextSteps 1": ["right", "right"],
    "5 nextStep": ["left", undefined],
  });
  const names = Object.keys(handles).map((name) => name.replace(/^pay--/, "settle--").replace(/-->pay$/, "-->settle"));
  expect(nodeAt(parse(renameStep(text, "pay", "settle")), EDGE_HANDLES)!.members!.map((one) => one.key)).toEqual(names);
});

test("places stand in the order of the steps, whoever was put somewhere first", () => {
  const at = (...ids: string[]) => ids.reduce((text, id) => pin(text, new Map([[id, { x: ids.length, y: 7 }]])), LOAN);
  const [first, second, third] = [...readDraft(LOAN).places.keys()] as [string, string, string];
  expect(at(third, first, second)).toBe(at(first, second, third));
  expect(at(second, third, first)).toBe(pin(LOAN, new Map([third, second, first].map((id) => [id, { x: 3, y: 7 }]))));
  // What stands there already keeps its place, also of a step that has gone.
  const gone = set(at(second), [...LAYOUT, "gone"], { x: 1, y: 1 });
  expect(nodeAt(parse(pin(gone, new Map([[first, { x: 0, y: 0 }], [second, { x: 5, y: 5 }], [third, { x: 0, y: 0 }]]))), LAYOUT)!.members!.map((one) => one.key)).toEqual([first, second, "gone", third]);
});

test("a name of sides is of the steps whose whole ids it has", () => {
  const step = (id: string, nextStep?: string) => ({ id, name: id, type: nextStep ? "SERVICE_TASK" : "END", ...(nextStep ? { nextStep } : {}) });
  const steps = [step("e", "end"), step("charge", "e"), step("pay", "end"), step("pay-2", "charge"), step("repay", "pay"), step("end")];
  const of = (...names: string[]) => set(JSON.stringify({ steps }), EDGE_HANDLES, Object.fromEntries(names.map((name) => [name, { sourceHandle: "right" }])));
  const sided = (text: string) => readDraft(text).edges.flatMap((one) => (one.sides ? [`${one.from}>${one.to}`] : []));
  for (const [name, edge] of [
    ["e-e-end", "e>end"],
    ["e-charge-e", "charge>e"],
    ["pay-end", "pay>end"],
    ["pay-2-charge", "pay-2>charge"],
    ["xy-edge__repayright-pay", "repay>pay"],
  ] as const)
    expect([name, sided(of(name))]).toEqual([name, [edge]]);
  // Of ways that are not there.
  expect(sided(of("pay-2-end", "repay-end", "payment-end"))).toEqual([]);
  const names = (text: string) => nodeAt(parse(text), EDGE_HANDLES)!.members!.map((one) => one.key);
  expect(names(renameStep(of("e-e-end", "repay->pay", "repay-end"), "e", "first"))).toEqual(["e-first-end", "repay->pay", "repay-end"]);
  expect(names(renameStep(of("repay->pay", "e-pay-end", "payment-end"), "pay", "settle"))).toEqual(["repay->settle", "e-settle-end", "payment-end"]);
});

test("steps are put on one line, or the same way apart", () => {
  const box = (x: number, y: number, width: number) => ({ x, y, width, height: 40 });
  const boxes = new Map([["a", box(100, 0, 200)], ["b", box(0, 300, 100)], ["c", box(500, 100, 100)]]);
  const xs = (how: Parameters<typeof aligned>[1]) => [...aligned(boxes, how)].map(([id, at]) => [id, at.x, at.y]);
  expect(xs("left")).toEqual([["a", 100, 0], ["b", 100, 300], ["c", 100, 100]]);
  expect(xs("right")).toEqual([["a", 100, 0], ["b", 200, 300], ["c", 200, 100]]);
  expect(xs("centre")).toEqual([["a", 100, 0], ["b", 150, 300], ["c", 150, 100]]);
  expect(xs("middle").map(([, , y]) => y)).toEqual([0, 0, 0]);
  expect(xs("down")).toEqual([["a", 100, 0], ["c", 500, 150], ["b", 0, 300]]);
  expect(xs("across")).toEqual([["b", 0, 300], ["a", 200, 0], ["c", 500, 100]]);
  expect(aligned(new Map(), "down").size).toBe(0);
});

test("a new id is followed in every field of the language that names a step", () => {
  const filled = (schema: Schema): unknown => {
    if (schema.format === "step-id") return "old";
    if (schema.items) return [filled(schema.items)];
    if (schema.properties) return Object.fromEntries(Object.entries(schema.properties).map(([name, own]) => [name, filled(own)]));
    return typeof schema.additionalProperties === "object" ? { key: filled(schema.additionalProperties) } : "other";
  };
  const step = { ...(filled(STEP) as object), id: "old" };
  const text = JSON.stringify({ steps: [step] });
  expect(referencesOf(parse(JSON.stringify(step)), []).length).toBeGreaterThanOrEqual(6);
  expect(renameStep(text, "old", "new")).toBe(text.replaceAll('"old"', '"new"'));
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
