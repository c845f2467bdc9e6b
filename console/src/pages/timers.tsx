// Timers to come, next first.
import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { useAddress } from "../address";
import { engine, type TimerView } from "../api/client";
import { More } from "../parts/list";
import { Empty, Problem, Skeleton } from "../parts/states";
import { bothZones, duration, useNow } from "../parts/time";

const REFRESH_MS = 5_000;
const KINDS: Record<string, string> = { "": "All", boundary: "Boundary events", retry: "Retries", wait: "Waits", wake: "Runs of code" };

export function TimersPage() {
  const [params, change] = useAddress();
  const kind = params.get("kind") ?? "";
  const now = useNow();
  const pages = useInfiniteQuery({
    queryKey: ["timers", kind],
    queryFn: ({ pageParam, signal }) => engine.timers(kind, pageParam, signal),
    placeholderData: keepPreviousData,
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
    refetchInterval: REFRESH_MS,
  });
  const rows = pages.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <>
      <div className="head">
        <h1>Timers</h1>
      </div>
      <div className="flt">
        <div className="seg" role="group" aria-label="Kind">
          {Object.entries(KINDS).map(([one, word]) => (
            <button key={one} type="button" aria-pressed={kind === one} onClick={() => change({ kind: one || undefined })}>
              {word}
            </button>
          ))}
        </div>
      </div>
      <section className="card" aria-label="Timers" aria-busy={pages.isPlaceholderData}>
        {pages.error ? (
          <Problem error={pages.error} retry={() => pages.refetch()} />
        ) : pages.isPending ? (
          <Skeleton />
        ) : rows.length === 0 ? (
          <Empty title={pages.hasNextPage ? "None among the next timers" : "No timer is armed"}>
            <p>Boundary events, retries and waits with a time are listed here, those first that fire next.</p>
          </Empty>
        ) : (
          <table className="wide">
            <thead>
              <tr>
                <th>What</th>
                <th>Instance</th>
                <th>Step</th>
                <th>Definition</th>
                <th className="r">Fires in</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row, at) => (
                // biome-ignore lint: an instance may have several timers of one step
                <tr key={`${row.instanceId} ${row.stepId} ${row.fireAt} ${at}`}>
                  <td>{words(row)}</td>
                  <td>
                    <Link href={`/instances/${encodeURIComponent(row.instanceId)}?step=${encodeURIComponent(row.stepId)}`}>
                      <code>{row.instanceId}</code>
                    </Link>
                  </td>
                  <td>{row.stepId}</td>
                  <td>
                    {row.definitionId} v{row.version}
                  </td>
                  <td className="r" title={bothZones(row.fireAt)} data-label="fires in">
                    {Date.parse(row.fireAt) > now ? duration(Date.parse(row.fireAt) - now) : "due"}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
        <More pages={pages} word="Later" />
      </section>
    </>
  );
}

function words(row: TimerView): string {
  if (row.kind === "boundary") return `${row.interrupting ? "interrupts, goes to" : "also goes to"} ${row.target}`;
  if (row.kind === "retry") return "next attempt";
  if (row.kind === "wait") return "end of the wait";
  return row.kind === "wake" ? "the run goes on" : row.kind; // what a newer engine has is shown as it is
}
