// In one sentence why an instance stands where it stands.
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { engine, failureText, type InstanceSummary, type Why } from "../../api/client";
import { CopyButton } from "../../parts/copy";
import { At } from "../../parts/time";

const LOOKS: Record<string, string> = { failed: "fail", "dead-end": "fail", "no-worker": "fail", retries: "wait", "queue-full": "wait", "queue-paused": "wait", "queue-rate": "wait", "waits-for-person": "wait", "waits-for-signal": "wait", "waits-for-message": "wait", "waits-for-time": "wait" };

/** How the line looks by the engine's code: it failed, it waits, it goes on. */
export const lookOf = (code: string): string => LOOKS[code] ?? "run";

/** In one sentence why it stands where it stands: the engine's. */
export function WhyLine({ why, instance, signals }: { why: Why; instance: InstanceSummary; signals: number }) {
  if (why.code === "completed") return null;
  return (
    <div className={`why ${lookOf(why.code)}`} role="status">
      <div>
        <b>{why.text}</b>
        {why.next !== undefined && (
          <p>
            Next <At at={why.next} />
          </p>
        )}
        {signals > 0 && (
          <p>
            {signals.toLocaleString("en")} {signals === 1 ? "signal is" : "signals are"} kept for later
          </p>
        )}
        {instance.status === "FAILED" && instance.failureReason !== undefined && <Alike filter={{ status: "FAILED", definitionId: instance.definitionId, cause: failureText(instance).slice(0, CAUSE_MAX_CHARS) }} />}
      </div>
      {why.code === "failed" && (
        <CopyButton text={() => why.text}>Copy error</CopyButton>
      )}
    </div>
  );
}

/** What the engine takes as the text of a cause. */
const CAUSE_MAX_CHARS = 1_000;

/** The others that failed for the same reason, counted by an index. */
function Alike({ filter }: { filter: { status: "FAILED"; definitionId: string; cause: string } }) {
  const counted = useQuery({ queryKey: ["instances", "count", filter], queryFn: ({ signal }) => engine.countInstances(filter, signal), staleTime: 10_000, retry: false });
  const others = (counted.data?.count ?? 0) - 1;
  if (others < 1) return null;
  return (
    <p>
      <Link href={`/instances?${new URLSearchParams(filter)}`}>
        {counted.data!.exact ? "" : "More than "}
        {others.toLocaleString("en")} other {others === 1 ? "instance" : "instances"} failed with this
      </Link>
    </p>
  );
}
