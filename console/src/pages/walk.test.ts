import { expect, test } from "vitest";
import type { JournalRecord } from "../api/client";
import { branchesThen, openOf, Walk } from "./walk";

const START = Date.parse("2026-12-01T12:00:00Z");

function record(pos: number, kind: string, path?: string, tookMs?: number): JournalRecord {
  return { pos: pos.toString(16), at: new Date(START + pos * 1_000).toISOString(), kind, ...(path !== undefined && { path, name: `work${path}` }), ...(tookMs !== undefined && { tookMs }) } as JournalRecord;
}

/** 100,000 records in pages of a thousand, and which pages were read. */
function long(count = 100_000, size = 1_000) {
  const asked: string[] = [];
  const walk = new Walk(async (cursor) => {
    asked.push(cursor);
    const from = cursor === "" ? 0 : Number.parseInt(cursor, 16);
    const items = Array.from({ length: Math.min(size, count - from) }, (_, at) => record(from + at + 1, "done", `/${from + at}`, 10));
    return { items, next: from + size < count ? (from + size).toString(16) : undefined };
  });
  return { walk, asked };
}

test("a journal of 100,000 records is walked page by page, and few pages are kept", async () => {
  const { walk, asked } = long();
  expect(await walk.first()).toEqual({ page: 0, row: 0 });
  let at = { page: 0, row: 998 };
  at = await walk.next(at);
  at = await walk.next(at);
  expect(at).toEqual({ page: 1, row: 0 });
  expect(walk.before(at)).toBe(1_000);
  expect(await walk.previous(at)).toEqual({ page: 0, row: 999 });
  expect(asked.length).toBe(2);
  const told: number[] = [];
  const last = await walk.seek(undefined, (records) => told.push(records) > 0);
  expect(last).toEqual({ page: 99, row: 999 });
  expect(walk.before(last!)).toBe(99_999);
  expect(told.length).toBe(97);
  expect(await walk.next(last!)).toEqual(last);
  expect((walk as unknown as { kept: Map<number, unknown> }).kept.size).toBeLessThanOrEqual(4);
  expect(await walk.previous({ page: 98, row: 0 })).toEqual({ page: 97, row: 999 });
  expect(await walk.seek((50_001).toString(16), () => true)).toEqual({ page: 50, row: 0 });
  const { before, after, whole } = await walk.around({ page: 50, row: 0 });
  expect([before.length, after.length, whole]).toEqual([1_000, 1_999, false]);
});

test("what was broken off or failed is read again, and so is the last page at its end", async () => {
  const { walk, asked } = long(3_000);
  expect(await walk.seek(undefined, () => false)).toEqual({ page: 0, row: 999 });
  let fails = true;
  const other = new Walk(async () => {
    if (fails) throw new Error("away");
    return { items: [] };
  });
  await expect(other.first()).rejects.toThrow("away");
  fails = false;
  expect(await other.first()).toBeUndefined();
  expect(await other.seek(undefined, () => true)).toBeUndefined();
  await walk.seek(undefined, () => true);
  const shorter = new Walk(async () => ({ items: [record(1, "done", "/0")] }));
  expect((await shorter.around({ page: 0, row: 1 })).record.path).toBe("/0");
  await expect(other.around({ page: 0, row: 0 })).rejects.toThrow("not in the journal any more");
  const before = asked.length;
  expect(await walk.next({ page: 2, row: 0 })).toEqual({ page: 2, row: 1 });
  expect(asked.length).toBe(before);
  expect(await walk.next({ page: 2, row: 999 })).toEqual({ page: 2, row: 999 });
  expect(asked.length).toBe(before + 1);
});

test("branches stand behind what has ended and before what came next", () => {
  const records = [
    record(1, "done", "/0", 0),
    record(2, "clock"),
    record(3, "done", "/1.[one]/0", 1_500),
    record(4, "done", "/1.2/1", 500),
    record(5, "message"),
    record(9, "child", "/3"),
  ];
  const open = openOf([
    { path: "/1", status: "ended", children: [] },
    { path: "/8", kind: "receive", name: "stop", status: "waiting", where: "shop.py:25", children: [] },
  ]);
  const then = (at: number) => branchesThen(records.slice(0, at), records[at]!, records.slice(at + 1), open).map(({ path, last, ahead, within }) => [path, last?.path, ahead?.path, within]);
  // Of the child that sleeps first nothing is known yet.
  expect(then(0)).toEqual([["", "/0", "/3", undefined]]);
  expect(then(1)).toEqual([["", "/0", "/3", "/1"], ["/1.[one]", undefined, "/1.[one]/0", undefined]]);
  expect(then(2)).toEqual([["", "/0", "/3", undefined]]);
  expect(then(3)).toEqual([["", "/0", "/3", undefined]]);
  expect(then(5)).toEqual([["", "/3", "/8", undefined]]);
  expect(branchesThen(records.slice(0, 5), records[5]!, [], open)[0]!.ahead!.where).toBe("shop.py:25");
  // Of a nursery that is open its block and its children stand somewhere, too; a scope is no place to stand.
  const inside = openOf([
    {
      path: "/4",
      kind: "nursery",
      status: "open",
      children: [{ path: "/4.0", status: "ended", children: [{ path: "/4.0/0", kind: "receive", name: "approval", status: "waiting", children: [] }] }],
    },
    { path: "/5", kind: "scope", status: "open", children: [] },
    { path: "/6", kind: "sleep", status: "waiting", children: [] },
  ]);
  expect(branchesThen([], records[5]!, [], inside).map(({ path, ahead }) => [path, ahead?.path])).toEqual([["", "/6"], ["/4.0", "/4.0/0"]]);
  expect(branchesThen([], records[0]!, records.slice(5), inside).map(({ path, ahead }) => [path, ahead?.path])).toEqual([["", "/3"]]);
  // What has a record is not open any more, whoever said so before.
  expect(branchesThen([], record(9, "receive", "/6"), [], inside).map(({ ahead }) => ahead?.path)).toEqual(["/6", "/4.0/0"]);
  expect(branchesThen([], record(9, "done", "/6"), [], inside).map(({ ahead }) => ahead?.path)).toEqual(["/4", "/4.0/0"]);
  // An attempt that failed is the branch's next record, and its last one.
  const retried = [record(1, "retry", "/0", 200), record(4, "done", "/0", 300)];
  expect(branchesThen([], retried[0]!, retried.slice(1), [])).toMatchObject([{ last: { kind: "retry" }, ahead: { path: "/0", since: START + 3_700 } }]);
});
