// One row per step execution; what waited and what ran. Gaps in which nothing happened are folded.
import type { Execution } from "../api/client";

export interface Bar {
  look: "queue" | "ok" | "fail" | "wait" | "run" | "skip" | "backoff" | "back";
  /** 0 to 1 of the row's width. */
  from: number;
  to: number;
  text: string;
}
export interface Row {
  execution: Execution;
  bars: Bar[];
  /** How long it took, or has taken. */
  ms: number;
}
export interface Timeline {
  rows: Row[];
  folded: boolean;
}

interface Span {
  start: number;
  end: number;
}
const GAP_FACTOR = 3;
const LEAST = 0.004;

export function timelineOf(history: Execution[], now: number): Timeline {
  const spans = history.map((entry) => spanOf(entry.startedAt, entry.endedAt, now));
  const { place, folded } = axis(history.flatMap((entry) => stretches(entry, now)));
  const rows = history.map((execution, at) => ({
    execution,
    bars: barsOf(execution, spans[at]!, now, place),
    ms: spans[at]!.end - spans[at]!.start,
  }));
  return { rows, folded };
}

function spanOf(start: string, end: string | undefined, now: number): Span {
  const from = Date.parse(start);
  return { start: from, end: end === undefined ? Math.max(now, from) : Date.parse(end) };
}

function stretches(entry: Execution, now: number): Span[] {
  const attempts = (entry.attempts ?? []).flatMap((attempt) => (attempt.startedAt ? [spanOf(attempt.startedAt, attempt.endedAt, now)] : []));
  const whole = spanOf(entry.startedAt, entry.endedAt, now);
  return attempts.length ? [{ start: whole.start, end: whole.start }, ...attempts, { start: whole.end, end: whole.end }] : [whole];
}

/** Where a time stands between 0 and 1. A gap longer than three times all that was busy counts as one tenth of it. */
function axis(spans: Span[]): { place: (at: number) => number; folded: boolean } {
  const sorted = [...spans].sort((a, b) => a.start - b.start);
  const merged: Span[] = [];
  for (const span of sorted) {
    const last = merged.at(-1);
    if (last && span.start <= last.end) last.end = Math.max(last.end, span.end);
    else merged.push({ ...span });
  }
  const busy = merged.reduce((sum, span) => sum + span.end - span.start, 0) || 1;
  const stops: [number, number][] = [];
  let at = 0;
  let folded = false;
  for (const [index, span] of merged.entries()) {
    if (index > 0) {
      const gap = span.start - merged[index - 1]!.end;
      const long = gap > GAP_FACTOR * busy;
      folded ||= long;
      at += long ? busy / 10 : gap;
    }
    stops.push([span.start, at]);
    at += span.end - span.start;
    stops.push([span.end, at]);
  }
  const whole = at || 1;
  const place = (time: number) => {
    for (let index = 1; index < stops.length; index++) {
      const [from, to] = [stops[index - 1]!, stops[index]!];
      if (time > to[0]) continue;
      const part = to[0] === from[0] ? 0 : (time - from[0]) / (to[0] - from[0]);
      return Math.max(0, (from[1] + part * (to[1] - from[1])) / whole);
    }
    return 1;
  };
  return { place, folded };
}

/** Attempts that came to nothing though nothing failed: their jobs were in the queue again. */
const BACK: Record<string, string> = { RELEASED: "given back", REDISPATCHED: "dispatched again" };
const FAILED = new Set(["FAILED", "LEASE_EXPIRED"]);
const PEOPLE = new Set(["USER_TASK", "CALL_ACTIVITY", "WAIT", "JOIN_GATEWAY"]);

function barsOf(entry: Execution, span: Span, now: number, place: (at: number) => number): Bar[] {
  const bar = (look: Bar["look"], start: number, end: number, text: string): Bar => {
    const from = Math.min(place(start), 1 - LEAST);
    return { look, from, to: Math.max(place(end), from + LEAST), text };
  };
  const attempts = (entry.attempts ?? []).filter((attempt) => attempt.startedAt !== undefined);
  if (attempts.length === 0) {
    const look = entry.status === "FAILED" ? "fail" : entry.status === "SKIPPED" ? "skip" : PEOPLE.has(entry.stepType) ? "wait" : entry.status === "RUNNING" ? "queue" : "ok";
    return [bar(look, span.start, span.end, look === "queue" ? "in the queue" : entry.status.toLowerCase())];
  }
  const bars: Bar[] = [];
  let before = span.start;
  let queued = true;
  for (const attempt of attempts) {
    const { start, end } = spanOf(attempt.startedAt!, attempt.endedAt, now);
    if (start > before) bars.push(bar(queued ? "queue" : "backoff", before, start, queued ? "in the queue" : "waited for the next attempt"));
    const open = attempt.endedAt === undefined && entry.endedAt === undefined;
    const back = BACK[attempt.status];
    const failed = attempt.reason !== undefined || FAILED.has(attempt.status);
    bars.push(bar(open ? "run" : back ? "back" : failed ? "fail" : "ok", start, open ? now : end, `attempt ${attempt.attempt}${attempt.worker ? ` by ${attempt.worker}` : ""}${back ? `, ${back}` : ""}`));
    before = end;
    queued = back !== undefined;
  }
  return bars;
}
