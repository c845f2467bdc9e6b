// Engines, the database that they share, and workers that they saw.
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { engine, type EngineView, type WorkerView } from "../api/client";
import { CopyId } from "../parts/copy";
import { Empty } from "../parts/states";
import { Badge } from "../parts/status";
import { type Column, Listing, Read, Table } from "../parts/table";
import { Ago, At } from "../parts/time";

const REFRESH_MS = 5_000;

export function EnginesPage() {
  return (
    <>
      <div className="head">
        <h1>Engines and workers</h1>
      </div>
      <Engines />
      <Workers />
    </>
  );
}

const number = (value: number | undefined) => value?.toLocaleString("en") ?? "–";
const ENGINES: Column<EngineView>[] = [
  { head: "State", cell: (one) => (one.alive ? <Badge look="ok">Alive</Badge> : <Badge look="fail">Gone</Badge>) },
  { head: "Number", look: "r", label: "number", cell: (one) => one.number },
  { head: "Host and process", cell: (one) => one.host },
  { head: "Version", cell: (one) => (one.report ? `${one.report.version}, schema ${one.schemaVersion}` : `schema ${one.schemaVersion}`) },
  { head: "Up since", look: "mute", cell: (one) => (one.report ? <Ago at={one.report.since} /> : "–") },
  { head: "Dispatch", cell: (one) => one.mode },
  { head: "Clients", look: "r", label: "clients", title: () => "Connections of clients", cell: (one) => number(one.report?.clientConnections) },
  { head: "Database", look: "r", label: "database", title: () => "Connections to the database", cell: (one) => number(one.report?.databaseConnections) },
  { head: "Polls", look: "r", label: "polls", title: () => "Polls that wait for a job", cell: (one) => number(one.report?.parkedPolls) },
  { head: "Leased jobs", look: "r", label: "leased", cell: (one) => number(one.report?.leasedJobs) },
  { head: "Batches", look: "r", label: "batches", title: (one) => (one.report ? `${one.report.itemsPerBatch} items each` : undefined), cell: (one) => (one.report ? `${one.report.batchesPerSecond} /s` : "–") },
  { head: "Loop lag", look: "r", label: "lag", title: () => "The worst of a minute", cell: (one) => (one.report ? `${Math.round(one.report.loopLagSeconds * 1_000)} ms` : "–") },
];

function Engines() {
  const found = useQuery({ queryKey: ["engines"], queryFn: ({ signal }) => engine.engines(signal), refetchInterval: REFRESH_MS });
  return (
    <>
      <section className="card" aria-label="Engines">
        <h2>Engines</h2>
        <Read of={found}>
          {({ items }) => (
            <div className="scroll" tabIndex={0} role="group" aria-label="Engines">
              <Table columns={ENGINES} rows={items} keyOf={(one) => one.number} />
            </div>
          )}
        </Read>
      </section>
      {found.data && <Database of={found.data.database} />}
    </>
  );
}

function Database({ of }: { of: Awaited<ReturnType<typeof engine.engines>>["database"] }) {
  return (
    <section className="card queues" aria-label="Database">
      <h2>Database</h2>
      <dl className="facts inset">
        <div>
          <dt>PostgreSQL</dt>
          <dd>{of.version}</dd>
        </div>
        <div>
          <dt>Size</dt>
          <dd>{size(of.bytes)}</dd>
        </div>
        <div>
          <dt>Partitions of history</dt>
          <dd>
            {of.partitions}
            {of.historySince !== undefined && (
              <>
                , since <At at={of.historySince} />
              </>
            )}
          </dd>
        </div>
        {of.oldestInstance !== undefined && (
          <div>
            <dt>Oldest instance, which keeps them</dt>
            <dd>
              <Link href={`/instances/${of.oldestInstance}`}>
                <code>{of.oldestInstance}</code>
              </Link>
            </dd>
          </div>
        )}
      </dl>
    </section>
  );
}

function size(bytes: number): string {
  const unit = bytes >= 1e9 ? ([1e9, "GB"] as const) : ([1e6, "MB"] as const);
  return `${(bytes / unit[0]).toFixed(1)} ${unit[1]}`;
}

const WORKERS: Column<WorkerView>[] = [
  { head: "Worker", cell: (row) => (<><code>{row.id}</code> <CopyId id={row.id} /></>) },
  { head: "Job types", look: "el types", title: (row) => row.jobTypes.join(", "), cell: (row) => row.jobTypes.join(", ") },
  { head: "Jobs", look: "r", label: "jobs", title: () => "That it had at its last poll", cell: (row) => row.leased },
  { head: "Done, 15 min", look: "r", label: "done", cell: (row) => number(row.doneLast15m) },
  { head: "Failed, 15 min", look: "r", label: "failed", cell: (row) => number(row.failedLast15m) },
  { head: "Engine", look: "r", label: "engine", cell: (row) => row.engine },
  { head: "Last poll", look: "r mute", cell: (row) => <Ago at={row.lastPollAt} /> },
];

function Workers() {
  const pages = useWorkers();
  return (
    <section className="card queues" aria-label="Workers">
      <h2>Workers seen within a day</h2>
      <Listing
        pages={pages}
        columns={WORKERS}
        keyOf={(row) => `${row.id} ${row.engine}`}
        empty={
          <Empty title="No worker was seen">
            <p>Workers that poll are listed here within ten seconds.</p>
          </Empty>
        }
      />
    </section>
  );
}

/** All, or those of a job type. */
export function useWorkers(jobType?: string) {
  return useInfiniteQuery({
    queryKey: ["workers", jobType ?? ""],
    queryFn: ({ pageParam, signal }) => engine.workers(pageParam, signal, jobType),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
    refetchInterval: REFRESH_MS,
  });
}

/** Those of one job type, beside its jobs. */
export function WorkersOf({ jobType }: { jobType: string }) {
  return (
    <section className="card queues" aria-label="Workers">
      <h2>Workers of {jobType}</h2>
      <Listing
        pages={useWorkers(jobType)}
        columns={WORKERS.filter((column) => column.head !== "Job types" && column.head !== "Engine")}
        keyOf={(row) => `${row.id} ${row.engine}`}
        empty={<p className="none">None was seen within a day: jobs of this type wait until a worker polls for it.</p>}
      />
    </section>
  );
}
