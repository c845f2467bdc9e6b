import { expect, test } from "vitest";
import { absolute, short } from "./time";

test("a time of day has 24 hours and its zone, however little room there is", () => {
  const at = Date.parse("2031-05-04T23:30:00Z");
  expect(absolute("2031-05-04T23:30:00Z", "Asia/Kathmandu")).toMatch(/05:15:00.*GMT\+5:45/);
  expect(short(at, false, true)).not.toMatch(/AM|PM/);
  expect(short(at, false, true)).toMatch(/\d\d:\d\d.*(UTC|GMT|[A-Z]{3,4})/);
  expect(short(at, false, false)).toMatch(/^\d\d:\d\d$/);
  expect(short(at, true, false)).not.toMatch(/:/);
});
