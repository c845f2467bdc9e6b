import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { engine } from "../api/client";
import { More } from "../parts/list";
import { Empty, Problem, Skeleton } from "../parts/states";
import { Badge } from "../parts/status";
import { Ago } from "../parts/time";

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

function Engines() {
  const found = useQuery({ queryKey: ["engines"], queryFn: ({ signal }) => engine.engines(signal), refetchInterval: REFRESH_MS });
  return (
    <section className="card" aria-label="Engines">
      <h2>Engines</h2>
      {found.error ? (
        <Problem error={found.error} retry={() => found.refetch()} />
      ) : !found.data ? (
        <Skeleton rows={2} />
      ) : (
        <table className="wide">
          <thead>
            <tr>
              <th>State</th>
              <th className="r">Number</th>
              <th>Host and process</th>
              <th>Dispatch</th>
              <th className="r">Schema version</th>
            </tr>
          </thead>
          <tbody>
            {found.data.items.map((one) => (
              <tr key={one.number}>
                <td>{one.alive ? <Badge look="ok">Alive</Badge> : <Badge look="fail">Gone</Badge>}</td>
                <td className="r">{one.number}</td>
                <td>{one.host}</td>
                <td>{one.mode}</td>
                <td className="r">{one.schemaVersion}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function Workers() {
  const pages = useInfiniteQuery({
    queryKey: ["workers"],
    queryFn: ({ pageParam, signal }) => engine.workers(pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
    refetchInterval: REFRESH_MS,
  });
  const rows = pages.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <section className="card queues" aria-label="Workers">
      <h2>Workers seen within a day</h2>
      {pages.error ? (
        <Problem error={pages.error} retry={() => pages.refetch()} />
      ) : pages.isPending ? (
        <Skeleton rows={3} />
      ) : rows.length === 0 ? (
        <Empty title="No worker was seen">
          <p>Workers that poll are listed here within ten seconds.</p>
        </Empty>
      ) : (
        <table className="wide">
          <thead>
            <tr>
              <th>Worker</th>
              <th>Job types</th>
              <th className="r">Engine</th>
              <th className="r">Last poll</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={`${row.id} ${row.engine}`}>
                <td>
                  <code>{row.id}</code>
                </td>
                <td className="el types" title={row.jobTypes.join(", ")}>
                  {row.jobTypes.join(", ")}
                </td>
                <td className="r">{row.engine}</td>
                <td className="r mute">
                  <Ago at={row.lastPollAt} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <More pages={pages} />
    </section>
  );
}
