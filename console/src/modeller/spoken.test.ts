import { expect, test } from "vitest";
import { inWords } from "./spoken";

test("durations and times are said in words, and nothing is said of what is none", () => {
  expect(["PT30S", "P1DT2H", "P1W", "PT1H30M", "PT0.5H"].map(inWords)).toEqual(["30 seconds", "1 day 2 hours", "1 week", "1 hour 30 minutes", "0.5 hours"]);
  // As the reader's language has it, as everywhere in the console: here as the machine's.
  const said = (time: string) => `${new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "short", hourCycle: "h23", timeZone: "UTC" }).format(Date.parse(time))} UTC`;
  for (const time of ["2031-05-04T12:00:00Z", "2031-05-04T14:30:00+02:00"]) expect(inWords(time)).toBe(said(time));
  expect(inWords("2031-05-04T12:00:00Z")).toContain("2031");
  expect(inWords("2031-05-04T23:30:00Z")).toContain("23:30");
  expect(["2031-13-04T12:00:00Z", "2031-05-04"].map(inWords)).toEqual([undefined, undefined]);
  expect(["", "P", "PT", "1h", "P1M", "${pause}"].map(inWords)).toEqual([undefined, undefined, undefined, undefined, undefined, undefined]);
});
