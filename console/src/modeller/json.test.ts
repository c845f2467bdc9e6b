import { describe, expect, test } from "vitest";
import { insert, insertMember, JsonProblem, move, nodeAt, parse, pretty, Raw, readExact, remove, rename, set, textOf, valueOf } from "./json";

const TEXT = `{
  "id" : "a",   "version": 12345678901234567890,
  "steps": [
    {"id": "one", "type": "END", "n": 1.50},
    {"id": "two", "10": 1, "2": 2}
  ],
  "empty": {}
}
`;

describe("edits change nothing else", () => {
  test("a value is set where it stands", () => {
    expect(set(TEXT, ["steps", 0, "type"], "WAIT")).toBe(TEXT.replace('"END"', '"WAIT"'));
    expect(set(TEXT, ["version"], new Raw("1e400"))).toBe(TEXT.replace("12345678901234567890", "1e400"));
    expect(set(TEXT, ["id"], "a")).toBe(TEXT);
  });
  test("what is new is written as its neighbours are", () => {
    expect(set(TEXT, ["steps", 0, "nextStep"], "two")).toBe(TEXT.replace("1.50}", '1.50, "nextStep": "two"}'));
    expect(set(TEXT, ["name"], "A")).toBe(TEXT.replace('"empty": {}\n', '"empty": {},\n  "name": "A"\n'));
    expect(insert(TEXT, ["steps"], 1, { id: "x", gone: undefined })).toBe(TEXT.replace('    {"id": "two"', '    {"id": "x"},\n    {"id": "two"'));
    expect(insert(TEXT, ["steps"], 2, { id: "x" })).toBe(TEXT.replace('"2": 2}\n', '"2": 2},\n    {"id": "x"}\n'));
    expect(set(TEXT, ["empty", "a", "b"], 1)).toContain('"empty": {"a": {"b": 1}}');
  });
  test("what goes takes its comma along", () => {
    expect(remove(TEXT, ["steps", 0, "type"])).toBe(TEXT.replace('"type": "END", ', ""));
    expect(remove(TEXT, ["steps", 0, "n"])).toBe(TEXT.replace(', "n": 1.50', ""));
    expect(remove(TEXT, ["steps", 1])).toBe(TEXT.replace(/,\n {4}\{"id": "two".*\}/, ""));
    expect(remove(set(TEXT, ["empty", "a"], 1), ["empty", "a"])).toBe(TEXT);
    expect(remove(TEXT, ["nothing", 3])).toBe(TEXT);
  });
  test("names that look like numbers keep their place", () => {
    expect(parse(TEXT).members![2]!.value.items![1]!.members!.map((one) => one.key)).toEqual(["id", "10", "2"]);
    expect(move(TEXT, ["steps", 1, "2"], 1)).toBe(TEXT.replace('"10": 1, "2": 2', '"2": 2, "10": 1'));
    expect(rename(TEXT, ["steps", 1, "10"], "11")).toBe(TEXT.replace('"10"', '"11"'));
    expect(rename(TEXT, ["steps", 1, "10"], "2")).toBe(TEXT);
    expect(insertMember(TEXT, ["steps", 1], 1, "x > 1", "y")).toBe(TEXT.replace('"10": 1', '"x > 1": "y", "10": 1'));
  });
  test("a text on one line stays on one", () => {
    const line = '{"a":[1,2]}';
    expect(insert(line, ["a"], 1, 7)).toBe('{"a":[1,7, 2]}');
    expect(move(line, ["a", 0], 1)).toBe('{"a":[2,1]}');
  });
});

test("text comes back the same through every edit that is taken back", () => {
  const path = ["steps", 1, "deep"];
  for (const value of [1, "x", null, [1, { a: [] }], { a: { b: {} } }]) expect(remove(set(TEXT, path, value), path)).toBe(TEXT);
});

test.each(["", "{", '{"a"}', "[1,]", "01", '"\u0001"', "{} x", "tru", '{"a":1,}', "\\"])("%j is no JSON, and where is told", (text) => {
  expect(() => parse(text)).toThrow(JsonProblem);
});

test("values are read as JavaScript has them", () => {
  expect(valueOf(parse('{"a":[1,true,null,"\\u00e9"],"a":2}'))).toEqual({ a: [1, true, null, "é"] });
  expect(Object.keys(valueOf(parse('{"__proto__": 1}')) as object)).toEqual(["__proto__"]);
  expect(nodeAt(parse(TEXT), ["steps", 5, "id"])).toBeUndefined();
});

test("a line per value, numbers as they are written", () => {
  const once = pretty('{"b":[],"a":[1.50,{"c":12345678901234567890}],"version":3}', ["version"]);
  expect(once).toBe('{\n  "b": [],\n  "a": [\n    1.50,\n    {\n      "c": 12345678901234567890\n    }\n  ]\n}\n');
  expect(pretty(once)).toBe(once);
});

describe("what JavaScript's numbers can't hold", () => {
  const text = '{"a": 9007199254740993, "b": [-12345678901234567890, {"c": 1e400}], "d": 1.5, "e": "12345678901234567890", "f": null}';
  test("is read and written as it was", () => {
    expect(textOf(readExact(text))).toBe(text);
    expect(textOf(readExact(text), true)).toBe(pretty(text).trimEnd());
    expect(readExact(text)).toMatchObject({ a: new Raw("9007199254740993"), d: 1.5, e: "12345678901234567890" });
  });
  test("makes nothing of other numbers", () => {
    const plain = '{"a": 9007199254740991, "b": [1e3, 0.1, -1.5e-7], "__proto__": {"c": 1234567890123456}}';
    expect(readExact(plain)).toEqual(JSON.parse(plain));
    expect(textOf([1, undefined, { a: undefined, b: [] }])).toBe('[1, null, {"b": []}]');
    expect(textOf({ a: { b: [] }, c: [1] }, true)).toBe(JSON.stringify({ a: { b: [] }, c: [1] }, null, 2));
  });
  test("is refused as it was", () => {
    expect(() => readExact('{"a": 9007199254740993')).toThrow(SyntaxError);
  });
});
