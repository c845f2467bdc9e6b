import { expect, test } from "vitest";
import { inWords } from "./spoken";

test("durations and times are said in words, and nothing is said of what is none", () => {
  expect(["PT30S", "P1DT2H", "P1W", "PT1H30M", "PT0.5H"].map(inWords)).toEqual(["30 seconds", "1 day 2 hours", "1 week", "1 hour 30 minutes", "0.5 hours"]);
  expect(["2031-05-04T12:00:00Z", "2031-05-04T14:30:00+02:00"].map((time) => inWords(time)?.replace(",", ""))).toEqual(["Sunday 4 May 2031 at 12:00 UTC", "Sunday 4 May 2031 at 12:30 UTC"]);
  expect(["2031-13-04T12:00:00Z", "2031-05-04"].map(inWords)).toEqual([undefined, undefined]);
  expect(["", "P", "PT", "1h", "P1M", "${pause}"].map(inWords)).toEqual([undefined, undefined, undefined, undefined, undefined, undefined]);
});
