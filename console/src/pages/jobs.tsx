import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { useAddress } from "../address";
import { engine } from "../api/client";
import { More, WordFilter } from "../parts/list";
import { Empty, Problem, Skeleton } from "../parts/states";
import { Ago } from "../parts/time";

export function FailedJobsPage() {
  const [params, change] = useAddress();
  const jobType = params.get("jobType") ?? "";
  const pages = useInfiniteQuery({
    queryKey: ["jobs", jobType],
    queryFn: ({ pageParam, signal }) => engine.failedJobs(jobType, pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
  });
  const rows = pages.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <>
      <div className="head">
        <h1>Failed jobs</h1>
      </div>
      <WordFilter label="Job type" value={jobType} mono apply={(word) => change({ jobType: word })} />
      <section className="card" aria-label="Failed jobs">
        {pages.error ? (
          <Problem error={pages.error} retry={() => pages.refetch()} />
        ) : pages.isPending ? (
          <Skeleton />
        ) : rows.length === 0 ? (
          <Empty title={jobType ? `No job of ${jobType} failed for good` : "No job failed for good"}>
            <p>A job fails for good when its retries are used up. Its instance can then be retried.</p>
          </Empty>
        ) : (
          <table className="wide">
            <thead>
              <tr>
                <th>Job type</th>
                <th>Instance</th>
                <th>Step</th>
                <th>Why</th>
                <th>Worker</th>
                <th className="r">Failed</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.id}>
                  <td>
                    <code>{row.jobType}</code>
                  </td>
                  <td>
                    <Link href={`/instances/${encodeURIComponent(row.instanceId)}?step=${encodeURIComponent(row.stepId)}`}>
                      <code>{row.instanceId}</code>
                    </Link>
                  </td>
                  <td>{row.stepId}</td>
                  <td className="el" title={row.reason}>
                    {row.reason}
                  </td>
                  <td className="mute">{row.workerId ?? "–"}</td>
                  <td className="r mute">
                    <Ago at={row.failedAt} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
        <More pages={pages} word="Older" />
      </section>
    </>
  );
}
