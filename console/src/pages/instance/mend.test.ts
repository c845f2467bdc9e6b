import { expect, test } from "vitest";
import type { Definition, InstanceState } from "../../api/client";
import { firstWayOf, placesOf } from "./mend";

const definition = {
  steps: [
    { id: "check", type: "SERVICE_TASK" },
    { id: "choose", type: "DECISION" },
    { id: "pay", type: "SERVICE_TASK" },
    { id: "end", type: "END" },
  ],
} as Definition;
const state = (status: string, at: string | undefined, tokens: object[] = []) => ({ instance: { status }, why: { stepId: at }, tokens }) as unknown as InstanceState;

test("the step that failed comes first", () => {
  const failed = state("FAILED", "pay");
  expect(firstWayOf(failed, definition)).toBe("skip");
  expect(placesOf(failed, definition, "skip").map((place) => [place.stepId, place.stands])).toEqual([["pay", true], ["check", false]]);
});

test("one that failed and has no result is moved, and no other one is named in its place", () => {
  const failed = state("FAILED", "choose");
  expect(firstWayOf(failed, definition)).toBe("move");
  expect(placesOf(failed, definition, "move")[0]).toMatchObject({ stepId: "choose", stands: true });
  expect(placesOf(failed, definition, "skip").map((place) => place.stands)).toEqual([false, false]);
});

test("what is open comes first, and which one failed may not be known", () => {
  const open = state("ACTIVE", "pay", [{ id: "1-1", stepId: "pay", text: "waits for a worker" }]);
  expect(firstWayOf(open, definition)).toBe("skip");
  expect(placesOf(open, definition, "skip").map((place) => [place.stepId, place.stands])).toEqual([["pay", true]]);
  expect(placesOf(state("FAILED", undefined), definition, "move").some((place) => place.stands)).toBe(false);
});
