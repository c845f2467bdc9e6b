import { expect, test } from "vitest";
import type { DraftCheck } from "../api/client";
import { readDraft } from "./draft";
import { newlyRead, withoutFailing } from "./newly";

const check = (identifiers: string[], reads: DraftCheck["reads"] = []): DraftCheck => ({ valid: true, problems: [], hints: [], identifiers, reads });
const used = { of: 100, items: [{ name: "customer", types: ["object"], in: 96 }, { name: "amount", types: ["number"], in: 100 }, { name: "note", types: ["null", "object"], in: 100 }] };

test("what is read anew is told with the runs that lack it, but not what the draft sets itself", () => {
  const use = { path: "steps[0].transformations.t", name: "customer", from: 2, to: 15, dot: 10 };
  const found = newlyRead(check(["amount"]), check(["amount", "customer", "fee", "note", "total"], [use]), used, new Set(["total"]));
  expect(found).toEqual([
    { name: "customer", missing: 4, isNull: false, uses: [use] },
    { name: "fee", missing: 100, isNull: false, uses: [] },
    { name: "note", missing: 0, isNull: true, uses: [] },
  ]);
  expect(newlyRead(check([]), check(["fee"]), { of: 0, items: [] }, new Set())).toEqual([]);
  expect(newlyRead({ ...check([]), valid: false }, check(["fee"]), used, new Set())).toEqual([]);
});

test("an expression is given a path that may end early, in a condition and in a value", () => {
  const condition = '"😀" != customer.tier.name && ok';
  const text = JSON.stringify({ id: "d", steps: [{ id: "a", conditionalNextSteps: { [condition]: "b", true: "c" }, transformations: { t: "${customer.tier}" } }] });
  const draft = readDraft(text);
  const inCondition = { path: `steps[0].conditionalNextSteps[${JSON.stringify(condition)}]`, name: "customer", from: 7, to: 25, dot: 15 };
  const fix = withoutFailing(draft, inCondition, true)!;
  expect(fix.label).toBe("Use (customer?.tier.name ?? nil)");
  expect(Object.entries(JSON.parse(fix.to(text)).steps[0].conditionalNextSteps)).toEqual([['"😀" != (customer?.tier.name ?? nil) && ok', "b"], ["true", "c"]]);
  const inValue = { path: "steps[0].transformations.t", name: "customer", from: 2, to: 15, dot: 10 };
  expect(JSON.parse(withoutFailing(draft, inValue, false)!.to(text)).steps[0].transformations).toEqual({ t: "${customer?.tier}" });
  expect(withoutFailing(draft, { path: "steps[0].transformations.t", name: "customer", from: 2, to: 10 }, true)).toBeUndefined();
});
