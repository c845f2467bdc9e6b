import { afterEach, beforeEach, expect, test, vi } from "vitest";

interface Asked {
  since: string | undefined;
  instances: string;
  newerThan: string | undefined;
  waitSeconds?: number;
  overview?: boolean;
  range?: string;
}
type Answer = { tag: string; changed: string[]; newer?: number; overview?: unknown } | undefined;
const calls: { asked: Asked; answer: (answer: Answer) => void; aborted: () => boolean }[] = [];
const overview = vi.fn(async (range: string) => ({ range }));

vi.mock("../api/client", () => ({
  EngineError: class extends Error {},
  engine: {
    watch: (asked: Asked, signal: AbortSignal) =>
      new Promise<Answer>((resolve, reject) => {
        signal.addEventListener("abort", () => reject(signal.reason));
        calls.push({ asked, answer: resolve, aborted: () => signal.aborted });
      }),
    overview: (range: string) => overview(range),
    ready: async () => ({ status: "ready" }),
  },
}));
const { Leader, READY_TIMEOUT_MS, TOPICS_MS } = await import("./leader");

let gone: AbortController;
beforeEach(() => {
  gone = new AbortController();
});
afterEach(() => gone.abort());

const turns = async () => {
  for (let turn = 0; turn < 20; turn++) await Promise.resolve();
};

test("instances that come to those watched are begun without losing what changes meanwhile", async () => {
  const news = vi.fn();
  const leader = new Leader({ news, reading: vi.fn(), living: async () => undefined });
  leader.heard("one", { instances: ["a"], topics: [] });
  void leader.lead(gone.signal);
  await turns();
  expect(calls.map(({ asked }) => asked)).toEqual([{ since: undefined, instances: "a", newerThan: undefined }]);
  calls[0]!.answer({ tag: "t1", changed: ["a"] });
  await turns();
  expect(news).toHaveBeenLastCalledWith({ changed: ["a"], newer: 0, began: true });
  expect(calls[1]!.asked).toEqual({ since: "t1", instances: "a", newerThan: undefined });

  leader.heard("two", { instances: ["a", "b"], topics: [] });
  expect(news).toHaveBeenLastCalledWith({ changed: ["a"], newer: 0, began: true }, "two");
  await turns();
  expect(calls[1]!.aborted()).toBe(true);
  expect(calls[2]!.asked).toEqual({ since: undefined, instances: "b", newerThan: undefined });
  calls[2]!.answer({ tag: "t5", changed: ["b"] });
  await turns();
  // The aborted call may have had an answer on its way: it is asked for once more.
  expect(calls[3]!.asked).toEqual({ since: "t1", instances: "a", newerThan: undefined, waitSeconds: 0 });
  calls[3]!.answer({ tag: "t6", changed: ["a"] });
  await turns();
  expect(news.mock.calls.slice(-2)).toEqual([[{ changed: ["a"], newer: 0, began: false }], [{ changed: ["b"], newer: 0, began: true }]]);
  expect(calls[4]!.asked).toEqual({ since: "t5", instances: "a,b", newerThan: undefined });
});

test("the overview comes with the parked call, for all tabs, and another range is read beside it", async () => {
  calls.length = 0;
  const heard: unknown[] = [];
  const leader = new Leader({ news: vi.fn(), reading: ({ topic, data }) => heard.push([topic, data]), living: async () => new Set(["one", "two"]) });
  leader.heard("one", { instances: [], topics: ["overview 1h"] });
  leader.heard("two", { instances: [], topics: ["overview 7d", "overview 1h"] });
  void leader.lead(gone.signal);
  await turns();
  expect(overview.mock.calls).toEqual([["7d"]]);
  calls[0]!.answer({ tag: "t1", changed: [] });
  await turns();
  expect(calls[1]!.asked).toEqual({ since: undefined, instances: "", newerThan: undefined, overview: true, range: "1h" });
  calls[1]!.answer({ tag: "t1", changed: [], overview: { at: 1 } });
  await turns();
  expect(calls[2]!.asked).toEqual({ since: "t1", instances: "", newerThan: undefined, overview: true, range: "1h" });
  calls[2]!.answer({ tag: "t2", changed: [], overview: { at: 2 } });
  await turns();
  expect(calls[3]!.asked).toMatchObject({ since: "t2", range: "1h" });
  leader.heard("two", { instances: [], topics: ["overview 1h"] });
  leader.heard("three", { instances: [], topics: ["overview 1h"] });
  expect(heard).toEqual([["overview 7d", { range: "7d" }], ["overview 1h", { at: 1 }], ["overview 1h", { at: 2 }], ["overview 1h", { at: 2 }]]);
  expect(overview).toHaveBeenCalledTimes(1);
});

test("an engine that hangs is reported within five seconds", () => {
  expect(TOPICS_MS + READY_TIMEOUT_MS).toBeLessThan(5_000);
});
