// A state is never colour alone: each has its glyph and its word. A state that is not known is shown as its text.
import { Icon, type IconName } from "./icons";

export type Look = "run" | "wait" | "ok" | "fail" | "retry" | "skip";

const INSTANCE: Record<string, [Look, string]> = {
  ACTIVE: ["run", "Running"],
  WAITING: ["wait", "Waiting"],
  COMPLETED: ["ok", "Completed"],
  FAILED: ["fail", "Failed"],
  CANCELLED: ["skip", "Cancelled"],
};
const EXECUTION: Record<string, [Look, string]> = {
  RUNNING: ["run", "Open"],
  COMPLETED: ["ok", "Completed"],
  FAILED: ["fail", "Failed"],
  SKIPPED: ["skip", "Skipped"],
};
const GLYPH: Record<Look, IconName> = { run: "dot", wait: "hourglass", ok: "tick", fail: "close", retry: "retry", skip: "dash" };

export function Badge({ look, children }: { look: Look; children: React.ReactNode }) {
  return (
    <span className={`st ${look}`}>
      <Icon name={GLYPH[look]} />
      {children}
    </span>
  );
}

/** A durable run that no code could go on with so far is WAITING on the wire: people have to see that it needs them. */
export function InstanceStatusBadge({ status, blocked }: { status: string; blocked?: boolean | undefined }) {
  const [look, word] = blocked ? (["fail", "Blocked"] as const) : (INSTANCE[status] ?? ["skip", status]);
  return <Badge look={look}>{word}</Badge>;
}

export function ExecutionBadge({ status }: { status: string }) {
  const [look, word] = EXECUTION[status] ?? ["skip", status];
  return <Badge look={look}>{word}</Badge>;
}
