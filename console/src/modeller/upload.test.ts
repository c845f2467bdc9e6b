import { expect, test } from "vitest";
import { sameText } from "./upload";

test("a text that a version has already changes nothing", () => {
  expect(sameText(1, 2)).toBe("Version 1 has this text already: nothing changes, and version 2 stays the latest.");
  expect(sameText(2, 2)).toBe("Version 2 has this text already: nothing changes.");
});
