import { expect, test } from "vitest";
import { helpOf, matching, tokensOf, wantedAt, wordBefore } from "./completion";

const WORDS = [
  { name: "applicant", call: false, note: "object, in 3 of 3 runs" },
  { name: "all", call: true, note: "all(list, condition)", help: "whether it is true of every element" },
  { name: "and", call: false, note: "a and b", help: "both are true" },
  { name: "AddDate", call: true, note: "of a date or a duration", method: true },
];
const GIVEN = '{"applicant": {"address": {"city": "Krakow", "no name": 1}, "age": 40}}';
const names = (text: string) => matching(WORDS, GIVEN, text, text.length).map((word) => word.name);

test("what may stand there is offered", () => {
  expect(names("a")).toEqual(["applicant", "all", "and"]);
  expect(names("1 > 0 && ap")).toEqual(["applicant"]);
  expect(names("all")).toEqual([]);
  expect(names("")).toEqual(["applicant", "all", "and"]);
  expect(names("applicant.a")).toEqual(["address", "age", "AddDate"]);
  expect(names("${applicant?.address.")).toEqual(["city", "AddDate"]);
  expect(names("date(x).")).toEqual(["AddDate"]);
  expect(names("nothing.c")).toEqual([]);
  expect(names("1.")).toEqual(["applicant", "all", "and"]);
});

test("help is of the word at the caret or under the pointer", () => {
  for (const at of [0, 1, 3]) expect(helpOf(WORDS, "all(x, # > 1)", at)?.note).toBe("all(list, condition)");
  expect([4, 8, 200].map((at) => helpOf(WORDS, "all(x, # > 1)", at))).toEqual([undefined, undefined, undefined]);
  expect(helpOf(WORDS, "a and b", 4)?.help).toBe("both are true");
  expect([wordBefore("${amo", 5), wordBefore("a.b", 3)]).toEqual(["amo", "b"]);
});

test("nothing is offered behind what is complete, and taken only where letters of it were typed", () => {
  const wanted = (text: string, at = text.length) => wantedAt(WORDS, text, at);
  for (const text of ["days > 10", "days > 1.", "days > 1e", "${applicant}", "len(x)", "list[0]", "x == 'a'", 'x == "it', "x == 'a\\'b", "days ", "days > 10 ", "# "]) expect([text, wanted(text)]).toEqual([text, "nothing"]);
  expect(wanted("applicant", 3)).toBe("nothing");
  for (const text of ["", "${", "days > ", "len(", "a and ", "x == 'a' && ", "applicant.", "applicant", "applicant?."]) expect([text, wanted(text)]).toEqual([text, "shown"]);
  for (const text of ["appl", "${appl", "1 > 0 && ap", "applicant.ad", "x == 'a' an"]) expect([text, wanted(text)]).toEqual([text, "taken"]);
});

test("an expression is coloured by its words, and text that is none is not", () => {
  const kinds = (text: string, template = false) => tokensOf([...WORDS, { name: "in", call: false, note: "word", operator: true }], text, template).map(({ from, to, kind }) => `${text.slice(from, to)} ${kind}`);
  expect(kinds("len(a) >= 1.5e3 in 'x")).toEqual(["len function", "a name", ">= operator", "1.5e3 number", "in word", "'x string"]);
  expect(kinds("${a.b}", true)).toEqual(["a name", "b name"]);
  expect(kinds("in words", true)).toEqual([]);
});
