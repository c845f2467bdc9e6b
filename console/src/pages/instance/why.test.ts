import { expect, test } from "vitest";
import { lookOf } from "./why";

test("what a queue keeps back looks as what waits, whichever limit it is", () => {
  expect(["queue-full", "queue-paused", "queue-rate"].map(lookOf)).toEqual(["wait", "wait", "wait"]);
  expect([lookOf("no-worker"), lookOf("waits-for-worker")]).toEqual(["fail", "run"]);
});
