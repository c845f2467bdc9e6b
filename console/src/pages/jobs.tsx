// Jobs by state: what failed for good, and of each type what waits, what workers have, what backs off.
import { keepPreviousData, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { engine, type FailedJob, type OpenJob } from "../api/client";
import { Dialog } from "../parts/dialog";
import { More, WordFilter } from "../parts/list";
import { Empty, Problem, Skeleton } from "../parts/states";
import { Ago, duration, useNow } from "../parts/time";
import { useCan } from "../session";

const REFRESH_MS = 2_000;
const LEASED_REFRESH_MS = 10_000;
const STATES = { FAILED: "Failed", WAITING: "Waiting", LOCKED: "At workers", BACKOFF: "Back-off" } as const;
type State = keyof typeof STATES;

export function JobsPage() {
  const [params, change] = useAddress();
  const jobType = params.get("jobType") ?? "";
  const asked = params.get("state") ?? "FAILED";
  const state: State = asked in STATES ? (asked as State) : "FAILED";
  return (
    <>
      <div className="head">
        <h1>Jobs</h1>
      </div>
      <JobTypes chosen={jobType} choose={(name) => change({ jobType: name, state: state === "FAILED" ? "WAITING" : state })} />
      <WordFilter label="Job type" value={jobType} mono apply={(word) => change({ jobType: word })} />
      {jobType !== "" && <WorkersOf jobType={jobType} />}
      <section className="card queues" aria-label="Jobs">
        <div className="tabs" role="tablist">
          {(Object.keys(STATES) as State[]).map((one) => (
            <button key={one} type="button" role="tab" aria-selected={state === one} aria-controls="jobs" onClick={() => change({ state: one === "FAILED" ? undefined : one }, true)}>
              {STATES[one]}
            </button>
          ))}
        </div>
        <div id="jobs" role="tabpanel" aria-label={STATES[state]}>
          {state === "FAILED" ? <FailedJobs jobType={jobType} /> : <OpenJobs key={state} state={state} jobType={jobType} />}
        </div>
      </section>
    </>
  );
}

function JobTypes({ chosen, choose }: { chosen: string; choose: (name: string) => void }) {
  const found = useQuery({ queryKey: ["job-types"], queryFn: ({ signal }) => engine.jobTypes(signal), refetchInterval: REFRESH_MS });
  if (found.error) return <Problem error={found.error} retry={() => found.refetch()} />;
  if (!found.data) return <Skeleton rows={3} />;
  return (
    <section className="card queues" aria-label="Job types">
      <h2>Queues, those first that wait longest</h2>
      {found.data.items.length === 0 ? (
        <Empty title="No job waits, and nobody polls">
          <p>Job types with jobs that wait, or with workers, are listed within ten seconds.</p>
        </Empty>
      ) : (
        <div className="scroll" tabIndex={0} role="group" aria-label="Queues">
          <table className="wide">
            <thead>
              <tr>
                <th>Job type</th>
                <th className="r">Waiting</th>
                <th className="r">Oldest waits</th>
                <th className="r">Workers</th>
              </tr>
            </thead>
            <tbody>
              {found.data.items.map((row) => (
                <tr key={row.jobType} aria-current={row.jobType === chosen ? "true" : undefined}>
                  <td>
                    <button type="button" className="link" onClick={() => choose(row.jobType)}>
                      <code>{row.jobType}</code>
                    </button>
                  </td>
                  <td className="r" data-label="waiting">
                    {row.waiting.toLocaleString("en")}
                  </td>
                  <td className="r" data-label="oldest">
                    {row.waiting > 0 ? duration(row.oldestSeconds * 1_000) : "–"}
                  </td>
                  <td className="r" data-label="workers">
                    {row.workers}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

/** Who asks for jobs of a type, and when they did last. */
function WorkersOf({ jobType }: { jobType: string }) {
  const found = useQuery({ queryKey: ["workers", "of", jobType], queryFn: ({ signal }) => engine.workers("", signal, jobType), refetchInterval: REFRESH_MS });
  if (found.error) return <Problem error={found.error} retry={() => found.refetch()} />;
  if (!found.data) return <Skeleton rows={1} />;
  return (
    <section className="card workers" aria-label="Workers">
      <h2>Workers of {jobType}</h2>
      {found.data.items.length === 0 ? (
        <p className="none">None was seen within a day: jobs of this type wait until a worker polls for it.</p>
      ) : (
        <ul>
          {found.data.items.map((worker) => (
            <li key={`${worker.id} ${worker.engine}`}>
              <code>{worker.id}</code> <span className="mute">polled <Ago at={worker.lastPollAt} /></span>
            </li>
          ))}
          {found.data.next !== undefined && <li className="mute">and more</li>}
        </ul>
      )}
    </section>
  );
}

function FailedJobs({ jobType }: { jobType: string }) {
  const pages = useInfiniteQuery({
    queryKey: ["jobs", jobType],
    queryFn: ({ pageParam, signal }) => engine.failedJobs(jobType, pageParam, signal),
    placeholderData: keepPreviousData,
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
  });
  const operates = useCan("operate");
  const [retrying, setRetrying] = useState<FailedJob>();
  const rows = pages.data?.pages.flatMap((page) => page.items) ?? [];
  if (pages.error) return <Problem error={pages.error} retry={() => pages.refetch()} />;
  if (pages.isPending) return <Skeleton />;
  if (rows.length === 0)
    return (
      <Empty title={jobType ? `No job of ${jobType} failed for good` : "No job failed for good"}>
        <p>A job fails for good when its retries are used up. Its instance can then be retried.</p>
      </Empty>
    );
  return (
    <>
      <table className="wide">
        <thead>
          <tr>
            <th>Job type</th>
            <th>Instance</th>
            <th>Step</th>
            <th>Why</th>
            <th>Worker</th>
            <th className="r">Failed</th>
            {operates && (
              <th>
                <span className="sr">Retry</span>
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.id}>
              <td>
                <code>{row.jobType}</code>
              </td>
              <td>
                <InstanceLink id={row.instanceId} step={row.stepId} />
              </td>
              <td>{row.stepId}</td>
              <td className="el" title={row.reason}>
                {row.reason}
              </td>
              <td className="mute">{row.workerId ?? "–"}</td>
              <td className="r mute">
                <Ago at={row.failedAt} />
              </td>
              {operates && (
                <td className="r">
                  <button type="button" className="btn sm" aria-label={`Retry ${row.instanceId}`} onClick={() => setRetrying(row)}>
                    Retry
                  </button>
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
      {operates && (
        <p className="mute note">
          Many at once: filter the <Link href="/instances?status=FAILED">failed instances</Link>, select them, Retry.
        </p>
      )}
      <More pages={pages} word="Older" />
      {retrying && (
        <Dialog title="Retry this instance?" verb="Retry" close={() => setRetrying(undefined)} act={() => engine.retry(retrying.instanceId).then(() => pages.refetch()).then(() => undefined)}>
          <p>
            It goes on at <code>{retrying.stepId}</code>, with the variables it has and all its retries again.
          </p>
        </Dialog>
      )}
    </>
  );
}

const NOTHING: Record<Exclude<State, "FAILED">, [title: string, meaning: string]> = {
  WAITING: ["No job of this type waits", "Workers that poll for it have them all, or there is nothing to do."],
  LOCKED: ["No worker has a job now", "A job is here from the poll that takes it to its result, or the end of its lease."],
  BACKOFF: ["No job waits for its next attempt", "A job that failed and may be retried is here until its time has come."],
};

function OpenJobs({ state, jobType }: { state: Exclude<State, "FAILED">; jobType: string }) {
  const now = useNow();
  const operates = useCan("operate");
  const [unlocking, setUnlocking] = useState<OpenJob>();
  const queries = useQueryClient();
  const pages = useInfiniteQuery({
    queryKey: ["open-jobs", state, jobType],
    queryFn: ({ pageParam, signal }) => engine.openJobs(state, jobType, pageParam, signal),
    placeholderData: keepPreviousData,
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
    refetchInterval: state === "LOCKED" ? LEASED_REFRESH_MS : REFRESH_MS,
    enabled: state !== "WAITING" || jobType !== "",
  });
  if (state === "WAITING" && jobType === "")
    return (
      <Empty title="Which queue?">
        <p>Choose a job type above: each has a queue of its own.</p>
      </Empty>
    );
  if (pages.error) return <Problem error={pages.error} retry={() => pages.refetch()} />;
  if (pages.isPending) return <Skeleton />;
  const rows = pages.data.pages.flatMap((page) => page.items);
  const [title, meaning] = NOTHING[state];
  if (rows.length === 0)
    return (
      <Empty title={title}>
        <p>{meaning}</p>
      </Empty>
    );
  return (
    <>
      <table className="wide">
        <thead>
          <tr>
            <th>Job type</th>
            <th>Instance</th>
            <th>Step</th>
            <th className="r">Attempt</th>
            {state === "LOCKED" && <th>Worker</th>}
            {state === "LOCKED" && <th className="r">Lease left</th>}
            {state === "BACKOFF" && <th className="r">Next attempt in</th>}
            <th className="r">{state === "LOCKED" ? "Has it for" : "Since"}</th>
            {state === "LOCKED" && operates && <th className="r">Act</th>}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.id}>
              <td>
                <code>{row.jobType}</code>
              </td>
              <td>
                <InstanceLink id={row.instanceId} step={row.stepId} />
              </td>
              <td>{row.stepId}</td>
              <td className="r">{state === "LOCKED" ? row.attempt : (row.attempt ?? 0) + 1}</td>
              {state === "LOCKED" && <td className="el">{row.workerId}</td>}
              {state === "LOCKED" && <td className="r">{left(row.leaseUntil, now)}</td>}
              {state === "BACKOFF" && <td className="r">{left(row.retryAt, now)}</td>}
              <td className="r mute">{state === "LOCKED" ? duration(now - Date.parse(row.since)) : <Ago at={row.since} />}</td>
              {state === "LOCKED" && operates && (
                <td className="r">
                  <button type="button" className="btn sm" onClick={() => setUnlocking(row)}>
                    End lease…
                  </button>
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
      <More pages={pages} />
      {unlocking && (
        <Dialog
          title="End this lease?"
          verb="End the lease"
          danger
          close={() => setUnlocking(undefined)}
          act={async (form) => {
            await engine.unlock(unlocking.id, String(form.get("note")).trim());
            await queries.invalidateQueries({ queryKey: ["open-jobs"] });
          }}
        >
          <p>
            {unlocking.workerId} is told that it lost the job, which goes back to the queue. No retry is spent. What the worker did so far is done: the next one begins from its checkpoint, or from the start.
          </p>
          <div className="field">
            <label htmlFor="note">Note, for the audit trail</label>
            <input id="note" name="note" className="in" maxLength={1000} />
          </div>
        </Dialog>
      )}
    </>
  );
}

function left(at: string | undefined, now: number): string {
  if (at === undefined) return "–";
  const ms = Date.parse(at) - now;
  return ms > 0 ? duration(ms) : "over";
}

function InstanceLink({ id, step }: { id: string; step: string }) {
  return (
    <Link href={`/instances/${encodeURIComponent(id)}?step=${encodeURIComponent(step)}`}>
      <code>{id}</code>
    </Link>
  );
}
