import * as bundled from "elkjs/lib/elk-worker.js";
import { beforeEach, expect, test, vi } from "vitest";
import type { Definition } from "../api/client";
import { elkWorker } from "./elk";
import { heightOf, layoutOf } from "./layout";

vi.mock("./elk", () => ({ elkWorker: vi.fn() }));
const InProcess = (bundled as unknown as { default: { Worker: new () => Worker } }).default.Worker;
const EXAMPLES = Object.values(import.meta.glob<{ default: Definition }>("../../../examples/*.json", { eager: true })).map((file) => file.default);

beforeEach(() => {
  vi.stubGlobal("__ELK_WORKER__", "worker.js");
  vi.mocked(elkWorker).mockReset();
  vi.mocked(elkWorker).mockImplementation(() => Object.assign(new InProcess(), { addEventListener: () => {} }));
});

function definition(id: string, steps: object[]): Definition {
  return { id, version: 1, steps } as unknown as Definition;
}

test("one step alone stands where ELK would put it, and ELK is not loaded", async () => {
  const alone = await layoutOf(definition("alone", [{ id: "end", type: "END" }]), false);
  expect(elkWorker).not.toHaveBeenCalled();
  const beside = await layoutOf(definition("two", [{ id: "end", type: "END" }, { id: "apart", type: "END" }]), false);
  expect(elkWorker).toHaveBeenCalled();
  const [first, last] = beside.nodes.toSorted((one, other) => one.y - other.y);
  const { x, y, width, height } = first!;
  expect(alone.nodes).toEqual([{ step: { id: "end", type: "END" }, x, y, width, height }]);
  expect(alone.height - y).toBe(beside.height - last!.y);
  expect(alone.width).toBe(2 * x + width);
});

test("no layout is less high than its longest way", async () => {
  const checked = EXAMPLES.filter(({ steps }) => steps);
  expect(checked.length).toBeGreaterThan(5);
  for (const body of checked) {
    const { height } = await layoutOf(body, false);
    expect(heightOf(body), body.id).toBeLessThanOrEqual(height);
    expect(heightOf(body), body.id).toBeGreaterThan(0.6 * height);
  }
}, 60_000);

test("a way back does not make it higher", () => {
  const steps = [{ id: "a", type: "SERVICE_TASK", nextStep: "b" }, { id: "b", type: "SERVICE_TASK", nextStep: "c" }, { id: "c", type: "END" }];
  const back = steps.map((one) => (one.id === "b" ? { ...one, conditionalNextSteps: { again: "a" } } : one));
  expect(heightOf(definition("back", back))).toBe(heightOf(definition("straight", steps)));
});
