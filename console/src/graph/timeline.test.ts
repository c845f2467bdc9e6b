import { describe, expect, it } from "vitest";
import type { Execution } from "../api/client";
import { timelineOf } from "./timeline";

const at = (seconds: number) => new Date(seconds * 1_000).toISOString();
const job = (from: number, to: number, attempts: [number, number, boolean][]) =>
  ({
    id: String(from),
    stepId: "s",
    stepType: "SERVICE_TASK",
    status: "COMPLETED",
    startedAt: at(from),
    endedAt: at(to),
    attempts: attempts.map(([start, end, failed], index) => ({ attempt: index + 1, status: failed ? "FAILED" : "COMPLETED", startedAt: at(start), endedAt: at(end), ...(failed ? { reason: "no" } : {}) })),
  }) as unknown as Execution;

describe("the timeline", () => {
  it("shows the queue, each attempt and the pauses between them", () => {
    const { rows, folded } = timelineOf([job(0, 10, [[2, 4, true], [6, 10, false]])], 0);
    expect(rows[0]!.bars.map((bar) => [bar.look, bar.from.toFixed(2), bar.to.toFixed(2)])).toEqual([
      ["queue", "0.00", "0.20"],
      ["fail", "0.20", "0.40"],
      ["backoff", "0.40", "0.60"],
      ["ok", "0.60", "1.00"],
    ]);
    expect(folded).toBe(false);
  });

  it("tells what was given back from what ran, and that it was queued again", () => {
    const released = job(0, 10, [[2, 4, false], [6, 8, false], [8, 10, false]]);
    for (const [at, status] of ["RELEASED", "LEASE_EXPIRED", "COMPLETED"].entries()) released.attempts![at]!.status = status;
    const { rows } = timelineOf([released], 0);
    expect(rows[0]!.bars.map((bar) => [bar.look, bar.text])).toEqual([
      ["queue", "in the queue"],
      ["back", "attempt 1, given back"],
      ["queue", "in the queue"],
      ["fail", "attempt 2"],
      ["ok", "attempt 3"],
    ]);
  });

  it("folds a gap longer than three times all that was busy", () => {
    const { rows, folded } = timelineOf([job(0, 1, [[0, 1, false]]), job(100_000, 100_001, [[100_000, 100_001, false]])], 0);
    expect(folded).toBe(true);
    expect(rows[0]!.bars.at(-1)!.to).toBeGreaterThan(0.4);
  });

  it("ends an open step now", () => {
    const open = { id: "1", stepId: "u", stepType: "USER_TASK", status: "RUNNING", startedAt: at(0) } as unknown as Execution;
    expect(timelineOf([open], 60_000).rows[0]).toMatchObject({ ms: 60_000, bars: [{ look: "wait", from: 0, to: 1 }] });
  });
});
