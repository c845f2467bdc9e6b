import { expect, test } from "vitest";
import { changed, opened, STEPS_MAX } from "./history";
import { set } from "./json";

test("each edit is a step back, and one that changes nothing is none", () => {
  let history = opened("a");
  history = changed(history, { do: "edit", to: (now) => `${now}b` });
  history = changed(history, { do: "edit", to: (now) => now });
  history = changed(history, { do: "edit", to: (now) => `${now}c` });
  expect(history.past).toEqual(["a", "ab"]);
  history = changed(changed(history, { do: "undo" }), { do: "undo" });
  expect([history.now, history.future]).toEqual(["a", ["ab", "abc"]]);
  expect(changed(history, { do: "undo" })).toBe(history);
  expect(changed(history, { do: "redo" }).now).toBe("ab");
  expect(changed(history, { do: "edit", to: () => "x" }).future).toEqual([]);
});

test("a text that is no JSON stays as it is, and can be typed on", () => {
  const broken = opened('{"name": ');
  expect(changed(broken, { do: "edit", to: (now) => set(now, ["name"], "a") })).toBe(broken);
  expect(changed(broken, { do: "edit", to: (now) => `${now}"b"}` }).now).toBe('{"name": "b"}');
});

test("what is typed into one field is one step back", () => {
  let history = opened("");
  for (const letter of "name") history = changed(history, { do: "edit", to: (now) => now + letter, of: "name" });
  history = changed(history, { do: "edit", to: (now) => `${now}!`, of: "other" });
  expect(history.past).toEqual(["", "name"]);
});

test("hundreds of steps are kept, and not all of them", () => {
  let history = opened("0");
  for (let number = 1; number <= STEPS_MAX + 5; number++) history = changed(history, { do: "edit", to: () => String(number) });
  expect([history.past.length, history.past[0]]).toEqual([STEPS_MAX, "5"]);
});
