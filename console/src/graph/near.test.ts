import { expect, test } from "vitest";
import type { Definition } from "../api/client";
import { edgesOf } from "./edges";
import { DRAWN_MAX_STEPS, nearTo } from "./near";

const chain = (count: number): Definition =>
  ({
    id: "chain",
    name: "Chain",
    version: 2,
    steps: Array.from({ length: count }, (_, at) => ({ id: `s${at}`, name: "", type: "SERVICE_TASK", ...(at + 1 < count && { nextStep: `s${at + 1}` }) })),
  }) as unknown as Definition;

test("of a long definition what is near is drawn, with the edges inside of it", () => {
  const part = nearTo(chain(1_000), ["s500", "gone"]);
  expect(part.steps.map((step) => step.id)).toEqual(["s497", "s498", "s499", "s500", "s501", "s502", "s503"]);
  expect(edgesOf(part).map(({ from, to }) => `${from}>${to}`)).toEqual(["s497>s498", "s498>s499", "s499>s500", "s500>s501", "s501>s502", "s502>s503"]);
});

test("without anything to look at it is the beginning that is drawn, and never too much", () => {
  expect(nearTo(chain(10), []).steps.map((step) => step.id)).toEqual(["s0", "s1", "s2", "s3"]);
  const star = { ...chain(0), steps: [{ id: "hub", name: "", type: "PARALLEL_GATEWAY", parallelNextSteps: Array.from({ length: 900 }, (_, at) => `b${at}`) }] } as unknown as Definition;
  star.steps.push(...star.steps[0]!.parallelNextSteps!.map((id) => ({ id, name: "", type: "SERVICE_TASK" }) as Definition["steps"][number]));
  expect(nearTo(star, ["hub"]).steps.length).toBeLessThanOrEqual(DRAWN_MAX_STEPS);
});
