import { expect, test } from "vitest";
import { inWords } from "./spoken";

test("durations are said in words, and nothing is said of what is none", () => {
  expect(["PT30S", "P1DT2H", "P1W", "PT1H30M", "PT0.5H"].map(inWords)).toEqual(["30 seconds", "1 day 2 hours", "1 week", "1 hour 30 minutes", "0.5 hours"]);
  expect(["", "P", "PT", "1h", "P1M", "${pause}"].map(inWords)).toEqual([undefined, undefined, undefined, undefined, undefined, undefined]);
});
