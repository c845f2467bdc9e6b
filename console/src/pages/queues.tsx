// Queues: what limits the jobs of some types (docs/queues.md): made, changed, paused, deleted.
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useAddress } from "../address";
import { engine, type Queue } from "../api/client";
import { Declared, Deleted, useDeclared } from "../parts/declared";
import { Dialog } from "../parts/dialog";
import { Empty } from "../parts/states";
import { Badge } from "../parts/status";
import { type Column, Listing, Read, Table } from "../parts/table";
import { duration } from "../parts/time";
import { useCan } from "../session";
import { QueueDialog } from "./policy";

const REFRESH_MS = 5_000;

export function QueuesPage() {
  const [params, change] = useAddress();
  const chosen = params.get("queue") ?? undefined;
  const operates = useCan("operate");
  const [asked, setAsked] = useState<Queue>();
  const [edited, setEdited] = useState<Queue | "new">();
  const [deleted, setDeleted] = useState<Queue>();
  const pages = useInfiniteQuery({
    queryKey: ["queues"],
    queryFn: ({ pageParam, signal }) => engine.queues(pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
    refetchInterval: REFRESH_MS,
  });
  const declared = useDeclared("queue");
  const columns: (Column<Queue> | false)[] = [
    {
      head: "Queue",
      cell: (row) => (
        <button type="button" className="link" onClick={() => change({ queue: row.name === chosen ? undefined : row.name })}>
          <code>{row.name}</code>
        </button>
      ),
    },
    declared.size > 0 && { head: "Code", cell: (row) => <Declared of={declared.get(row.name)} done={() => pages.refetch()} /> },
    { head: "State", cell: (row) => (row.policy.paused ? <Badge look="wait">Paused</Badge> : <Badge look="run">Open</Badge>) },
    { head: "Job types", look: "el types", title: (row) => row.policy.jobTypes.join(", "), cell: (row) => row.policy.jobTypes.join(", ") },
    { head: "Concurrency", look: "r", label: "concurrency", cell: (row) => row.policy.concurrency ?? "any" },
    { head: "Per key", look: "r", label: "per key", cell: (row) => row.policy.concurrencyPerKey ?? "any" },
    { head: "Rate", look: "r", label: "rate", cell: (row) => rate(row.policy.rate) },
    { head: "Rate per key", look: "r", label: "rate per key", cell: (row) => rate(row.policy.ratePerKey) },
    { head: "Open runs", look: "r", label: "open runs", title: () => "of durable workflows, from their first activation to their end", cell: (row) => row.policy.runs ?? "any" },
    operates && {
      head: <span className="sr">Actions</span>,
      look: "r",
      cell: (row) => (
        <span className="row-acts">
          <button type="button" className="btn sm" aria-label={`Change ${row.name}`} onClick={() => setEdited(row)}>
            Change…
          </button>
          <button type="button" className="btn sm" aria-label={`${row.policy.paused ? "Resume" : "Pause"} ${row.name}`} onClick={() => setAsked(row)}>
            {row.policy.paused ? "Resume" : "Pause…"}
          </button>
          <button type="button" className="btn sm bad" aria-label={`Delete ${row.name}`} onClick={() => setDeleted(row)}>
            Delete…
          </button>
        </span>
      ),
    },
  ];
  const act = async () => {
    await (asked!.policy.paused ? engine.resumeQueue(asked!.name) : engine.pauseQueue(asked!.name));
    await pages.refetch();
  };
  return (
    <>
      <div className="head">
        <h1>Queues with limits</h1>
        {operates && (
          <div className="act">
            <button type="button" className="btn pri" onClick={() => setEdited("new")}>
              New queue
            </button>
          </div>
        )}
      </div>
      <section className="card" aria-label="Queues">
        <Listing
          pages={pages}
          columns={columns}
          keyOf={(row) => row.name}
          isCurrent={(row) => row.name === chosen}
          empty={
            <Empty title="No queue has limits">
              <p>
                Jobs of all types go to workers as these ask. A limit is set by <code>PUT /v1/queues/…</code> or <code>penstock queue</code>.
              </p>
            </Empty>
          }
        />
      </section>
      <Deleted found={declared} done={() => pages.refetch()} />
      {chosen !== undefined && <Standing name={chosen} />}
      {edited && <QueueDialog queue={edited === "new" ? undefined : edited} close={() => setEdited(undefined)} done={() => pages.refetch()} />}
      {deleted && (
        <Dialog
          title={`Delete ${deleted.name}?`}
          verb="Delete"
          danger
          close={() => setDeleted(undefined)}
          act={async () => {
            await engine.deleteQueue(deleted.name);
            await pages.refetch();
          }}
        >
          <p>Its jobs are free at once: nothing limits them any more.</p>
        </Dialog>
      )}
      {asked && (
        <Dialog title={`${asked.policy.paused ? "Resume" : "Pause"} ${asked.name}?`} verb={asked.policy.paused ? "Resume" : "Pause"} danger={!asked.policy.paused} close={() => setAsked(undefined)} act={act}>
          <p>{asked.policy.paused ? "Its jobs may begin again, at once." : "None of its jobs begins until you resume it. Running jobs go on."}</p>
        </Dialog>
      )}
    </>
  );
}

/** How one queue stands, with the flow keys that have most under way or are first in line. */
function Standing({ name }: { name: string }) {
  const found = useQuery({ queryKey: ["queue", name], queryFn: ({ signal }) => engine.queue(name, signal), refetchInterval: REFRESH_MS });
  return (
    <section className="card queues" aria-label={`Queue ${name}`}>
      <h2>{name}</h2>
      <Read of={found}>
        {({ running, waiting, oldestSeconds, keys, openRuns }) => (
          <>
            <p className="mute note">
              {running === undefined ? "" : `${running.toLocaleString("en")} running, `}
              {openRuns === undefined ? "" : `${openRuns.toLocaleString("en")} ${openRuns === 1 ? "run" : "runs"} open, `}
              {(waiting ?? 0).toLocaleString("en")} waiting{oldestSeconds !== undefined && `, the first for ${duration(oldestSeconds * 1_000)}`}
            </p>
            {keys !== undefined && keys.length > 0 && (
              <Table
                rows={keys}
                keyOf={(row) => row.flowKey}
                columns={[
                  { head: "Flow key", cell: (row) => <code>{row.flowKey || "none"}</code> },
                  { head: "Running", look: "r", label: "running", cell: (row) => row.running ?? "not counted" },
                  { head: "Waiting", look: "r", label: "waiting", cell: (row) => row.waiting.toLocaleString("en") },
                ]}
              />
            )}
          </>
        )}
      </Read>
    </section>
  );
}

function rate(of: Queue["policy"]["rate"]): string {
  if (of === undefined || of === null) return "any";
  const burst = (of.burst ?? of.limit) === of.limit ? "" : ` (burst ${of.burst})`;
  return `${of.limit} in ${of.window ? "any " : ""}${of.period ?? "PT1S"}${burst}`;
}
