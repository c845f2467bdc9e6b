import { expect, test } from "vitest";
import type { Branch } from "../api/client";
import { latestOf } from "./run";

test("what is open stays in sight beside what ended last", () => {
  const branch = (path: string, endedAt?: string): Branch => ({ path, status: "done", ...(endedAt && { endedAt }) }) as Branch;
  const branches = [branch("/0"), branch("/1", "2026-01-01T00:00:00Z"), branch("/2", "2026-01-01T00:00:01Z"), branch("/3", "2026-01-01T00:00:02Z")];
  expect(latestOf(branches, 2).map((one) => one.path)).toEqual(["/0", "/2", "/3"]);
  expect(latestOf(branches, 9)).toEqual(branches);
});
