// A definition's edges, and which of them an instance has taken.
import type { Definition, Execution, Step } from "../api/client";

export type EdgeKind = "next" | "cond" | "else" | "par" | "timer" | "timer-int" | "error";

/** It hangs on its step: a timer or an error leads along it. */
export function isBoundary({ kind }: { kind: EdgeKind }): boolean {
  return kind === "timer" || kind === "timer-int" || kind === "error";
}

export interface Edge {
  id: string;
  from: string;
  to: string;
  kind: EdgeKind;
  label?: string;
}

export function edgesOf(definition: Definition): Edge[] {
  return definition.steps.flatMap(edgesFrom).map((edge, at) => ({ ...edge, id: `e${at}` }));
}

function edgesFrom(step: Step): Omit<Edge, "id">[] {
  const from = step.id;
  return [
    ...(step.nextStep ? [{ from, to: step.nextStep, kind: "next" as const }] : []),
    ...Object.entries(step.conditionalNextSteps ?? {}).map(([condition, to]) =>
      condition === "true" ? { from, to, kind: "else" as const, label: "otherwise" } : { from, to, kind: "cond" as const, label: condition },
    ),
    ...(step.parallelNextSteps ?? []).map((to) => ({ from, to, kind: "par" as const })),
    ...(step.boundaryEvents ?? []).map((event) => ({
      from,
      to: event.targetStepId,
      kind: event.type === "ERROR" ? ("error" as const) : event.interrupting === false ? ("timer" as const) : ("timer-int" as const),
      label: event.type === "ERROR" ? (event.errorCodes ?? ["any error"]).join(", ") : (event.duration ?? "").replace(/^PT?/, "").toLowerCase(),
    })),
  ];
}

export interface StepState {
  look: "done" | "run" | "wait" | "fail" | "skip";
  /** How often it was entered. */
  times: number;
}

const WAITS = new Set(["USER_TASK", "CALL_ACTIVITY", "WAIT", "JOIN_GATEWAY"]);

/** Steps that are open and wait for a person, a signal or another instance are amber; the others that are open, blue. */
export function statesOf(definition: Definition, history: Execution[]): Map<string, StepState> {
  const types = new Map(definition.steps.map((step) => [step.id, step.type]));
  const states = new Map<string, StepState>();
  for (const entry of history) {
    const type = types.get(entry.stepId);
    const open = type !== undefined && WAITS.has(type) ? "wait" : "run";
    const look = ({ RUNNING: open, COMPLETED: "done", FAILED: "fail", SKIPPED: "skip" } as const)[entry.status] ?? "run";
    states.set(entry.stepId, { look, times: (states.get(entry.stepId)?.times ?? 0) + 1 });
  }
  return states;
}

/** Of an edge, among those taken: a boundary event may lead where its step leads, too. */
export function wayOf(edge: Pick<Edge, "from" | "to" | "kind">): string {
  return `${edge.from}${isBoundary(edge) ? "!" : ">"}${edge.to}`;
}

/** The ways (`wayOf`) taken. One transaction ends a step and enters the next: both bear its time. */
export function takenOf(definition: Definition, history: Execution[]): Set<string> {
  const entered = new Map<string, Set<string>>();
  const ended = new Map<string, Set<string>>();
  const failed = new Map<string, Set<string>>();
  const note = (notes: Map<string, Set<string>>, step: string, at: string) => notes.set(step, (notes.get(step) ?? new Set()).add(at));
  for (const entry of history) {
    note(entered, entry.stepId, entry.startedAt);
    if (entry.endedAt !== undefined) note(entry.status === "FAILED" ? failed : ended, entry.stepId, entry.endedAt);
  }
  const edges = edgesOf(definition);
  const meet = (edge: Edge) => {
    const starts = entered.get(edge.to);
    if (!starts) return false;
    // A timer that does not interrupt leaves its step open: the entry of its target is all there is to see.
    if (edge.kind === "timer") return entered.has(edge.from);
    // What an error or an interrupting timer ended is shown as failed, and goes on nowhere else.
    const left = (isBoundary(edge) ? failed : ended).get(edge.from);
    return [...(left ?? [])].some((at) => starts.has(at));
  };
  const met = edges.filter(meet);
  // A join is entered once, by the first that comes. Of the others it is known that they ended and went nowhere else.
  const joins = new Set(definition.steps.filter((step) => step.type === "JOIN_GATEWAY").map((step) => step.id));
  const elsewhere = new Set(met.filter((edge) => !isBoundary(edge)).map((edge) => edge.from));
  const joined = edges.filter((edge) => joins.has(edge.to) && !isBoundary(edge) && entered.has(edge.to) && ended.has(edge.from) && !elsewhere.has(edge.from));
  return new Set([...met, ...joined].map(wayOf));
}
