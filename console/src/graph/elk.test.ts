import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { elkWorker, whenIdle } from "./elk";

class FakeWorker extends EventTarget {
  terminate = vi.fn();
}
let later: (() => void)[];
const cancelled: number[] = [];

beforeEach(() => {
  later = [];
  cancelled.length = 0;
  vi.useFakeTimers();
  vi.stubGlobal("__ELK_WORKER__", "worker.js");
  vi.stubGlobal("Worker", FakeWorker);
  vi.stubGlobal("requestAnimationFrame", (act: () => void) => later.push(act));
  vi.stubGlobal("cancelAnimationFrame", (id: number) => cancelled.push(id));
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("what can wait begins when a frame was painted and the page idles", () => {
  const act = vi.fn();
  vi.stubGlobal("requestIdleCallback", (idle: () => void) => later.push(idle));
  vi.stubGlobal("cancelIdleCallback", (id: number) => cancelled.push(-id));
  const takeBack = whenIdle(act);
  later[0]!();
  expect(act).not.toHaveBeenCalled();
  later[1]!();
  expect(act).toHaveBeenCalledOnce();
  takeBack();
  expect(cancelled).toEqual([1, -2]);
});

test("where nobody tells when the page idles a time after the frame is as good", () => {
  const act = vi.fn();
  whenIdle(act);
  later[0]!();
  expect(act).not.toHaveBeenCalled();
  vi.runAllTimers();
  expect(act).toHaveBeenCalledOnce();
  const takeBack = whenIdle(act);
  later[1]!();
  takeBack();
  vi.runAllTimers();
  expect(act).toHaveBeenCalledOnce();
});

test("one worker is for all pictures, and another one when it could not be loaded", () => {
  const first = elkWorker();
  expect(elkWorker()).toBe(first);
  first.dispatchEvent(new Event("error"));
  const second = elkWorker();
  expect(second).not.toBe(first);
  expect(first.terminate).toHaveBeenCalledOnce();
  first.dispatchEvent(new Event("error"));
  expect(elkWorker()).toBe(second);
});
