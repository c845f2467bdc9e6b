// Whoever does tasks: what they are called, what they are asked before they touch another's, and how one has ended without them.
import { type QueryClient, queryOptions } from "@tanstack/react-query";
import { useId, useState } from "react";
import { type AuditRecord, EngineError, engine, type UserTask } from "../api/client";
import { Dialog } from "../parts/dialog";
import { useMe } from "../session";

/** Items of a forEach are counted from 1, as people do. */
export function nameOf(task: UserTask): string {
  return task.item === undefined ? task.name : `${task.name} · item ${task.item + 1}`;
}

/** Without authentication nobody has a name: what somebody calls themselves is remembered by this browser. */
const NAME = "penstock.name";

function keptName(): string {
  try {
    return localStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

export interface Clerk {
  /** Empty where nobody has said. */
  name: string;
  /** There is no authentication: a name is what somebody says. */
  nameless: boolean;
  /** What they say. */
  remember: (name: string) => void;
}

export function useClerk(): Clerk {
  const me = useMe();
  const [called, call] = useState(keptName);
  const remember = (name: string) => {
    try {
      localStorage.setItem(NAME, name);
    } catch {
      // a browser that keeps nothing: until the page is left
    }
    call(name);
  };
  return { name: me.data?.name ?? called, nameless: me.data !== undefined && me.data.name === undefined, remember };
}

export function NameField() {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>Your name</label>
      <input id={id} name="by" className="in" maxLength={256} autoComplete="name" />
    </div>
  );
}

/** What was written in a `NameField`. Throws SyntaxError, which the dialog shows. */
export function nameIn(form: FormData): string {
  const by = String(form.get("by")).trim();
  if (!by) throw new SyntaxError("A name, so that others see who it is.");
  return by;
}

/** Whether somebody else has it. */
export function isTheirs(task: UserTask, { name }: Clerk): boolean {
  return task.assignee !== undefined && task.assignee !== name;
}

interface TheirsProps {
  assignee: string | undefined;
  verb: "Complete it anyway" | "Give it back anyway";
  /** Asked for where they have none. */
  clerk?: Clerk;
  act: (by: string) => Promise<void>;
  close: () => void;
}

/** The question before somebody does something to a task that another one has. */
export function Theirs({ assignee, verb, clerk, act, close }: TheirsProps) {
  const asks = clerk !== undefined && clerk.nameless && clerk.name === "";
  return (
    <Dialog title={`${assignee} has this task`} verb={verb} close={close} act={(form) => act(asks ? nameIn(form) : (clerk?.name ?? ""))}>
      <p>They may be at work on it: {clerk ? "once you complete it, what they have typed is not taken any more" : "once you give it back, it is nobody's, and others may take it"}. Better ask them first.</p>
      {asks && <NameField />}
    </Dialog>
  );
}

/** Not found, or in conflict with what has become of the instance. */
export function isOver(error: unknown): boolean {
  return error instanceof EngineError && (error.status === 404 || error.status === 409);
}

/** How a task ended; empty where it is not known how. */
export type End = Partial<Pick<AuditRecord, "kind" | "at" | "actor">>;

interface Read {
  task?: UserTask;
  end?: End;
  /** The engine has answered so to a completion, whatever a list says that is older. */
  refused?: true;
}

const READ_MS = 5_000;

const AUDIT_ITEMS = 1_000;
const AUDIT_MAX_PAGES = 5;

async function endOf(executionId: string, signal?: AbortSignal): Promise<End> {
  const instance = executionId.slice(0, executionId.indexOf("-"));
  let cursor: string | undefined = "";
  for (let read = 0; cursor !== undefined && read < AUDIT_MAX_PAGES; read++) {
    const page: Awaited<ReturnType<typeof engine.audit>> = await engine.audit(instance, cursor, signal, AUDIT_ITEMS);
    const end = page.items.find((record) => record.stepExecutionId === executionId && record.kind.startsWith("STEP_"));
    if (end) return end;
    cursor = page.next;
  }
  return {};
}

/** A task, listed or not, while it is open, and then how it ended, which is read once. */
export function taskOf(executionId: string) {
  return queryOptions({
    queryKey: ["task", executionId],
    queryFn: async ({ signal }): Promise<Read> => {
      try {
        const [task] = (await engine.task(executionId, signal)).items;
        if (task) return { task };
        return { end: await endOf(executionId, signal) };
      } catch (error) {
        if (error instanceof EngineError && error.status === 404) return { end: {} };
        throw error;
      }
    },
    staleTime: ({ state }) => (state.data?.end ? Number.POSITIVE_INFINITY : 0),
    refetchInterval: ({ state }) => (state.data?.end ? false : READ_MS),
  });
}

/** The engine has said that it is open no more, also where it does not tell how. */
export async function askForEnd(queries: QueryClient, { executionId }: UserTask): Promise<End> {
  const end = await endOf(executionId).catch(() => ({}));
  queries.setQueryData(taskOf(executionId).queryKey, { end, refused: true });
  return end;
}

export function wordsOf({ kind, actor }: End): string {
  return kind === undefined ? "This task is open no more: it was completed, or the instance has ended" : kind === "STEP_COMPLETED" ? `${actor ?? "Somebody"} has completed this task` : "The instance went on without this task";
}
