import { describe, expect, it } from "vitest";
import { roundUp, ticksOf } from "./chart";

describe("the axis of a chart", () => {
  it("has round numbers only", () => {
    const axes: [number, number[]][] = [
      [330, [500, 400, 300, 200, 100, 0]],
      [170, [200, 150, 100, 50, 0]],
      [0.7, [1, 0.8, 0.6, 0.4, 0.2, 0]],
      [0.04, [0.05, 0.04, 0.03, 0.02, 0.01, 0]],
      [9, [10, 8, 6, 4, 2, 0]],
      [0, [1, 0.8, 0.6, 0.4, 0.2, 0]],
    ];
    for (const [most, ticks] of axes) expect(ticksOf(roundUp(most))).toEqual(ticks);
  });
});
