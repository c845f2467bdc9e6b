import { expect, test } from "vitest";
import { nextSlice } from "./sight";

test("of what is drawn bit by bit less comes after a frame that was late, and more after others", () => {
  expect(nextSlice(10, 33, 10)).toBe(5);
  expect(nextSlice(5, 16.7, 10)).toBe(6);
  expect(nextSlice(10, 16.7, 10)).toBe(10);
  expect(nextSlice(2, 100, 10)).toBe(2);
});
