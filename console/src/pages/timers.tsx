// Timers to come, next first.
import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { useAddress } from "../address";
import { engine, type TimerView } from "../api/client";
import { Empty } from "../parts/states";
import { Listing } from "../parts/table";
import { bothZones, duration, useNow } from "../parts/time";

const REFRESH_MS = 5_000;
const KINDS: Record<string, string> = { "": "All", boundary: "Boundary events", retry: "Retries", wait: "Waits", wake: "Durable runs" };

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
        <Listing
          pages={pages}
          keyOf={(row, at) => `${row.instanceId} ${row.stepId} ${row.fireAt} ${at}`} // an instance may have several timers of one step
          more="Later"
          empty={
            <Empty title={pages.hasNextPage ? "None among the next timers" : "No timer is armed"}>
              <p>Boundary events, retries and waits with a time are listed here, those first that fire next.</p>
            </Empty>
          }
          columns={[
            { head: "What", cell: words },
            {
              head: "Instance",
              cell: (row) => (
                <Link href={`/instances/${encodeURIComponent(row.instanceId)}?step=${encodeURIComponent(row.stepId)}`}>
                  <code>{row.instanceId}</code>
                </Link>
              ),
            },
            { head: "Step", cell: (row) => row.stepId },
            { head: "Definition", cell: (row) => `${row.definitionId} v${row.version}` },
            { head: "Fires in", look: "r", label: "fires in", title: (row) => bothZones(row.fireAt), cell: (row) => (Date.parse(row.fireAt) > now ? duration(Date.parse(row.fireAt) - now) : "due") },
          ]}
        />
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
