import { expect, test } from "vitest";
import type { UserTask } from "../api/client";
import { begunOf, keepBegun, openOf } from "./inbox";

const task = (executionId: string): UserTask => ({ instanceId: "1", stepId: "check", executionId, name: "Check", jobType: "j", definitionId: "d", version: 1, openedAt: "2026-11-28T00:00:00Z" });
const [first, second] = [task("1-1-a"), task("1-1-b")];
const held = { task: first, list: "all" };
const look = { rows: [first, second], settled: true, asked: "", held: undefined, loose: false, read: undefined, first };

test("the first is open until one is picked", () => {
  expect(openOf(look)).toEqual({ open: first, missing: false });
  expect(openOf({ ...look, asked: "1-1-b" })).toEqual({ open: second, missing: false });
});

test("one that is listed no more stays open, also if it was only read", () => {
  expect(openOf({ ...look, rows: [second], first: second, held })).toEqual({ open: first, missing: true });
  expect(openOf({ ...look, rows: [second], first: second, held, asked: "1-1-a" })).toEqual({ open: first, missing: true });
});

test("an address of one that is not listed opens no other", () => {
  expect(openOf({ ...look, asked: "1-1-c" })).toEqual({ open: undefined, missing: true });
  expect(openOf({ ...look, asked: "1-1-c", settled: false })).toEqual({ open: undefined, missing: false });
  expect(openOf({ ...look, asked: "1-1-c", held, read: task("1-1-c") })).toEqual({ open: task("1-1-c"), missing: true });
  expect(openOf({ ...look, asked: "1-1-c", read: second }).open).toBeUndefined();
});

test("another filter opens its first, once it is read, unless the one before is in it", () => {
  expect(openOf({ ...look, rows: [first], settled: false, held, loose: true }).open).toBe(first);
  expect(openOf({ ...look, rows: [second], first: second, held, loose: true })).toEqual({ open: second, missing: false });
  expect(openOf({ ...look, first: second, held, loose: true }).open).toBe(first);
});

test("what is typed is kept for whoever typed it, the newest fifty", () => {
  const typed = { values: { amount: 17 }, text: "{}" };
  keepBegun("ada", first, typed);
  expect(begunOf("ada", first)).toBe(typed);
  expect(begunOf("bo", first)).toBeUndefined();
  keepBegun("ada", first, undefined);
  expect(begunOf("ada", first)).toBeUndefined();
  for (let at = 0; at <= 50; at++) keepBegun("ada", task(`1-1-${at}`), typed);
  expect([begunOf("ada", task("1-1-0")), begunOf("ada", task("1-1-1"))]).toEqual([undefined, typed]);
});
