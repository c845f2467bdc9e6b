import { expect, test } from "vitest";
import { isGoneOn, Lines, replaced } from "./texts";

test("the fewest characters make one text of another", () => {
  const pairs = [["", "a"], ["a", ""], ["abc", "abc"], ["aaa", "aa"], ["abcd", "axcd"], ["one two", "one and two"], ["xx", "xyx"], ["😀", "😁"]] as const;
  for (const [before, after] of pairs) {
    const { from, to, insert } = replaced(before, after);
    expect(before.slice(0, from) + insert + before.slice(to)).toBe(after);
  }
  expect(replaced("one two", "one and two")).toEqual({ from: 4, to: 4, insert: "and " });
  expect(replaced("abc", "abc")).toEqual({ from: 3, to: 3, insert: "" });
});

test("each text is kept with the line ends that it has", () => {
  for (const kept of ["", "a", "a\nb\n", "a\r\nb\r\n\r\n", "\ufeffa\r\nb", "a\rb", "a\r\nb\nc", "\na\r\n"]) {
    const lines = new Lines(kept);
    expect(lines.kept(lines.shown)).toBe(kept);
    for (const [at, letter] of [...kept].entries()) if (letter !== "\r") expect(lines.shown[lines.place(at)]).toBe(letter);
  }
  expect(new Lines("a\r\nb").shown).toBe("a\nb");
  expect(new Lines("a\r\nb\nc").shown).toBe("a\r\nb\nc");
  expect(new Lines("a\r\nb").kept("a\nb\nc")).toBe("a\r\nb\r\nc");
});

test("letters typed one after the other are undone together", () => {
  const typed = { kind: "type", from: 3, to: 4, at: 1_000 } as const;
  expect(isGoneOn(typed, { kind: "type", from: 4, to: 4, at: 1_100 })).toBe(true);
  for (const other of [{ at: 1_600 }, { from: 9, to: 9 }, { kind: "delete" }] as const) expect(isGoneOn(typed, { kind: "type", from: 4, to: 4, at: 1_100, ...other })).toBe(false);
  expect(isGoneOn(undefined, typed)).toBe(false);
  const pasted = { ...typed, kind: "other" } as const;
  expect(isGoneOn(pasted, { ...pasted, from: 4 })).toBe(false);
});
