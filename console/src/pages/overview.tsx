import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { engine, type InstanceStatus } from "../api/client";
import { Empty, Problem, Skeleton } from "../parts/states";
import { InstanceStatusBadge } from "../parts/status";
import { Ago } from "../parts/time";

const NEWEST = 8;
const REFRESH_MS = 2_000;

export function OverviewPage() {
  return (
    <>
      <div className="head">
        <h1>Overview</h1>
      </div>
      <Engine />
      <div className="grid">
        <Newest title="Failed lately" status="FAILED" empty="Nothing has failed">
          <p>Instances that failed for good are shown here, newest first.</p>
        </Newest>
        <Newest title="Started lately" empty="Nothing was started yet">
          <p>
            Upload a <Link href="/definitions">definition</Link>, then start an instance of it.
          </p>
        </Newest>
      </div>
    </>
  );
}

/** What is wrong with the engine itself, in words; nothing when all is well. */
function Engine() {
  const ready = useQuery({ queryKey: ["ready"], queryFn: ({ signal }) => engine.ready(signal), refetchInterval: REFRESH_MS, retry: false });
  if (ready.error) return <Problem error={ready.error} retry={() => ready.refetch()} />;
  if (!ready.data) return null;
  const { degraded = [], insecure } = ready.data;
  return (
    <>
      {degraded.map((what) => (
        <p key={what} className="banner wait">
          <b>The engine works without {what}.</b> What needs it waits until it is back.
        </p>
      ))}
      {insecure && (
        <p className="banner fail">
          <b>Anybody who reaches this engine may do everything.</b> It was told to listen without authentication.
        </p>
      )}
    </>
  );
}

function Newest({ title, status, empty, children }: { title: string; status?: InstanceStatus; empty: string; children: React.ReactNode }) {
  const filter = status ? { status } : {};
  const found = useQuery({
    queryKey: ["instances", "newest", status],
    queryFn: ({ signal }) => engine.instances(filter, "", NEWEST, signal),
    refetchInterval: REFRESH_MS,
  });
  return (
    <section className="card" aria-label={title}>
      <h2>
        {title}
        <span className="more">
          <Link href={status ? `/instances?status=${status}` : "/instances"}>Show all</Link>
        </span>
      </h2>
      {found.error ? (
        <Problem error={found.error} retry={() => found.refetch()} />
      ) : found.isPending ? (
        <Skeleton rows={4} />
      ) : found.data.items.length === 0 ? (
        <Empty title={empty}>{children}</Empty>
      ) : (
        <table>
          <thead className="sr">
            <tr>
              <th>Status</th>
              <th>Instance</th>
              <th>Definition</th>
              <th>Started</th>
            </tr>
          </thead>
          <tbody>
            {found.data.items.map((row) => (
              <tr key={row.id}>
                <td>
                  <InstanceStatusBadge status={row.status} />
                </td>
                <td>
                  <Link href={`/instances/${encodeURIComponent(row.id)}`}>
                    <code>{row.id}</code>
                  </Link>
                </td>
                <td className="el" title={row.failureReason ?? row.definitionId}>
                  {row.failureReason ?? row.definitionId}
                </td>
                <td className="r mute">
                  <Ago at={row.startedAt} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}
