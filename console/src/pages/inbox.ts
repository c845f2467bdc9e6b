// Which task of the inbox is before somebody, and what they have typed there.
import type { UserTask } from "../api/client";
import type { Values } from "../parts/form";

/** What was before somebody last, and in which list: that of another filter is not theirs to go on with, unless they have begun. */
export interface Held {
  task: UserTask;
  list: string;
}

interface Looked {
  rows: readonly UserTask[];
  /** Whether `rows` are what the engine has for the filter. */
  settled: boolean;
  /** The execution that the address names. */
  asked: string;
  held: Held | undefined;
  /** The list is another one by now, and nothing was typed. */
  loose: boolean;
  /** The task as it was read by itself. */
  read: UserTask | undefined;
  first: UserTask | undefined;
}

/** The task that is open, and whether it has to be read by itself: a task stays until another one is picked, listed or not. */
export function openOf({ rows, settled, asked, held, loose, read, first }: Looked): { open: UserTask | undefined; missing: boolean } {
  const id = asked || held?.task.executionId;
  if (id === undefined) return { open: first, missing: false };
  const listed = rows.find((task) => task.executionId === id);
  if (listed) return { open: listed, missing: false };
  if (asked === "" && loose) return { open: settled ? first : held?.task, missing: false };
  return { open: read?.executionId === id ? read : held?.task.executionId === id ? held.task : undefined, missing: settled };
}

/** What was typed in a task's form; `text` is that of the JSON where it has none. */
export interface Begun {
  values: Values;
  text: string;
}

const BEGUN_MAX = 50;
const begun = new Map<string, Begun>();

/** It stays in this tab, also while other tasks or pages are looked at, for whoever typed it. */
export function begunOf(who: string, task: UserTask): Begun | undefined {
  return begun.get(`${task.executionId} ${who}`);
}

export function keepBegun(who: string, task: UserTask, typed: Begun | undefined): void {
  const key = `${task.executionId} ${who}`;
  begun.delete(key);
  if (typed) begun.set(key, typed);
  if (begun.size > BEGUN_MAX) begun.delete(begun.keys().next().value!);
}
