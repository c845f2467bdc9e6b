import { expect, test } from "vitest";
import type { Branch } from "../api/client";
import { answerText, latestOf, updatesOf } from "./run";

test("what is open stays in sight beside what ended last", () => {
  const branch = (path: string, endedAt?: string): Branch => ({ path, status: "done", ...(endedAt && { endedAt }) }) as Branch;
  const branches = [branch("/0"), branch("/1", "2026-01-01T00:00:00Z"), branch("/2", "2026-01-01T00:00:01Z"), branch("/3", "2026-01-01T00:00:02Z")];
  expect(latestOf(branches, 2).map((one) => one.path)).toEqual(["/0", "/2", "/3"]);
  expect(latestOf(branches, 9)).toEqual(branches);
});

test("the updates that a run serves are found in its tree, and an answer is a sentence", () => {
  const served = { path: "~updates", status: "open", kind: "nursery", children: [{ path: "~updates/raise", status: "open", kind: "update", name: "raise" }] } as Branch;
  expect(updatesOf([served, { path: "/0", status: "done", kind: "step", name: "pay" } as Branch])).toEqual(["raise"]);
  expect(answerText("raise", { id: "1", status: "DONE", value: { limit: 5 } })).toBe('raise answered {"limit":5}.');
  expect(answerText("raise", { id: "1", status: "DONE" })).toBe("raise answered null.");
  expect(answerText("raise", { id: "1", status: "PENDING" })).toBe("raise has not answered yet. The call is kept.");
  expect(answerText("raise", { id: "1", status: "REFUSED", reason: "too low" })).toBe("raise: the call was refused: too low");
});
