// Bulk operations and how far each is: those that run, beside the list of instances.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { Link } from "wouter";
import { type BulkAction, type BulkView, engine } from "../api/client";
import { Badge } from "../parts/status";
import { Ago, duration } from "../parts/time";
import { useCan } from "../session";

export const VERBS: Record<BulkAction, string> = { retry: "Retry", cancel: "Cancel", signal: "Signal", skip: "Skip a step of", move: "Move", migrate: "Migrate", edit: "Change variables of" };
const REFRESH_MS = 2_000;

export function count(value: number): string {
  return value.toLocaleString("en");
}

export function Progress({ view }: { view: BulkView }) {
  const queries = useQueryClient();
  const operates = useCan("operate");
  const over = view.done + view.skipped + view.failed;
  const part = view.state === "DONE" ? 1 : Math.min(1, over / Math.max(1, view.total));
  const stop = () => engine.stopBulk(view.id).then(() => queries.invalidateQueries({ queryKey: ["bulk"] }));
  return (
    <li className="bulk">
      <div className="line">
        <Link href={`/bulk/${encodeURIComponent(view.id)}`} className="el">
          {VERBS[view.action as BulkAction] ?? view.action} · {describe(view)}
        </Link>
        {view.state === "RUNNING" ? (
          operates && (
            <button type="button" className="link" onClick={stop}>
              Stop
            </button>
          )
        ) : (
          <Badge look={view.failed ? "fail" : view.state === "DONE" ? "ok" : "skip"}>{view.state === "DONE" ? "Done" : "Stopped"}</Badge>
        )}
      </div>
      <progress value={part} max={1} aria-label={`${VERBS[view.action as BulkAction] ?? view.action}, progress`} />
      <p className="mute">
        {count(view.done)} of {view.totalExact ? "" : "> "}
        {count(view.total)}
        {view.skipped > 0 && ` · ${count(view.skipped)} had nothing to do`}
        {view.failed > 0 && ` · ${count(view.failed)} failed`}
        {view.actor && ` · by ${view.actor}`} · <Ago at={view.createdAt} />
        {view.endedAt && `, in ${duration(Date.parse(view.endedAt) - Date.parse(view.createdAt))}`}
      </p>
      {view.note && <p className="mute">{view.note}</p>}
      {view.outcome && <Became view={view} outcome={view.outcome} />}
      {view.errors.length > 0 && (
        <ul className="mono refused">
          {view.errors.map((text) => (
            <li key={text}>{text}</li>
          ))}
        </ul>
      )}
    </li>
  );
}

/** How the instances stand now that it was done to, each number with the way to them. */
function Became({ view: { id, action, done }, outcome: { completed = 0, failed = 0, running = 0, cancelled = 0 } }: { view: BulkView; outcome: NonNullable<BulkView["outcome"]> }) {
  const known = completed + failed + running + cancelled;
  const parts: [number, string, string][] = [
    [completed, "completed since", "COMPLETED"],
    [failed, action === "retry" ? "failed again" : "failed", "FAILED"],
    [running, "still running", "OPEN"],
    [cancelled, "cancelled", "CANCELLED"],
  ];
  return (
    <p aria-label="What became of them">
      {known < done && `Of ${count(known)} that are known: `}
      {parts
        .filter(([number]) => number > 0)
        .map(([number, word, status], at) => (
          <span key={status}>
            {at > 0 && " · "}
            <Link href={`/instances?${new URLSearchParams(status === "OPEN" ? { bulkId: id, open: "true" } : { bulkId: id, status })}`}>
              {count(number)} {word}
            </Link>
          </span>
        ))}
    </p>
  );
}

function describe(view: BulkView): string {
  const filter = view.filter as { status?: string; definitionId?: string; businessKey?: string; cause?: string; errorContains?: string; ids?: string[] };
  if (filter.ids) return `${count(filter.ids.length)} chosen`;
  return [filter.definitionId, filter.status?.toLowerCase(), filter.businessKey, filter.cause, filter.errorContains].filter(Boolean).join(" · ");
}

/** Nothing when none does. */
export function Running() {
  const found = useQuery({ queryKey: ["bulk", "list"], queryFn: ({ signal }) => engine.bulks("", signal), refetchInterval: REFRESH_MS });
  const queries = useQueryClient();
  const ended = found.data?.items.flatMap((view) => (view.state === "RUNNING" ? [] : [view.id])).join();
  const before = useRef(ended);
  useEffect(() => {
    // What matched a filter before may not any more.
    if (before.current !== undefined && before.current !== ended) void queries.invalidateQueries({ queryKey: ["instances", "count"] });
    before.current = ended;
  }, [ended, queries]);
  const shown = (found.data?.items ?? []).filter((view) => view.state === "RUNNING" || Date.now() - Date.parse(view.endedAt ?? view.createdAt) < 60_000).slice(0, 5);
  if (shown.length === 0) return null;
  return (
    <section className="card pane" aria-label="Bulk operations">
      <h2>
        Bulk operations
        <span className="more">
          <Link href="/bulk">Show all</Link>
        </span>
      </h2>
      <ul>
        {shown.map((view) => (
          <Progress key={view.id} view={view} />
        ))}
      </ul>
    </section>
  );
}
