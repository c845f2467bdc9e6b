import { expect, test } from "vitest";
import { DIFFERING_MAX, linesOf } from "./lines";

const shown = (before: string, after: string, around?: number) => linesOf(before, after, around)?.map(({ how, text }) => `${how} ${text}`);

test("what went and what came, with the lines around", () => {
  expect(shown("a\nb\nc", "a\nx\nc")).toEqual(["same a", "gone b", "came x", "same c"]);
  expect(shown("1\n2\n3\n4\n5\n6", "1\n2\n3\n4\n5\n7", 1)).toEqual(["left … 4 lines the same", "same 5", "gone 6", "came 7"]);
  expect(shown("", "a")).toEqual(["gone ", "came a"]);
  expect(shown("a", "a")).toEqual(["left … 1 line the same"]);
});

test("both texts come out of it whole, with as few lines as can be", () => {
  let state = 3;
  const random = (below: number) => Math.floor(((state = (state * 1103515245 + 12345) % 2147483648) / 2147483648) * below);
  for (let round = 0; round < 300; round++) {
    const [before, after] = [0, 0].map(() => Array.from({ length: random(12) }, () => "abc"[random(3)]).join("\n"));
    const lines = linesOf(before!, after!, 1_000)!;
    const of = (...hows: string[]) => lines.filter(({ how }) => hows.includes(how)).map(({ text }) => text).join("\n");
    expect(of("same", "gone", "left").replace(/… .* same/, before!)).toBe(before);
    if (before !== after) expect(of("same", "came")).toBe(after);
    expect(lines.filter(({ how }) => how === "gone" || how === "came").length).toBe(fewest(before!.split("\n"), after!.split("\n")));
  }
});

test("too much that differs is not compared", () => {
  const many = (word: string) => Array.from({ length: DIFFERING_MAX }, (_, at) => `${word} ${at}`).join("\n");
  expect(linesOf(many("a"), many("b"))).toBeUndefined();
});

/** By the longest common subsequence. */
function fewest(old: string[], now: string[]): number {
  const row = new Array<number>(now.length + 1).fill(0);
  for (const line of old) {
    let before = 0;
    for (let at = 1; at <= now.length; at++) {
      const kept = row[at]!;
      row[at] = line === now[at - 1] ? before + 1 : Math.max(row[at]!, row[at - 1]!);
      before = kept;
    }
  }
  return old.length + now.length - 2 * row.at(-1)!;
}
