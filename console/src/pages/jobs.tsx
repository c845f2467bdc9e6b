// Jobs by state: what failed for good, and of each type what waits, what workers have, what backs off.
import { keepPreviousData, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { engine, type FailedJob, type OpenJob, type QueueRow } from "../api/client";
import { Dialog, NoteField } from "../parts/dialog";
import { WordFilter } from "../parts/list";
import { Empty } from "../parts/states";
import { type Column, Listing, Read, Table } from "../parts/table";
import { Ago, duration, useNow } from "../parts/time";
import { useCan } from "../session";
import { WorkersOf } from "./engines";

const REFRESH_MS = 2_000;
const LEASED_REFRESH_MS = 10_000;
const STATES = { FAILED: "Failed", WAITING: "Waiting", LOCKED: "In progress", BACKOFF: "Waiting to retry" } as const;
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
        <Link className="act" href="/queues">
          Queues with limits
        </Link>
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
  const columns: Column<QueueRow>[] = [
    {
      head: "Job type",
      cell: (row) => (
        <button type="button" className="link" onClick={() => choose(row.jobType)}>
          <code>{row.jobType}</code>
        </button>
      ),
    },
    { head: "Waiting", look: "r", label: "waiting", cell: (row) => `${row.waitingExact ? "" : "> "}${row.waiting.toLocaleString("en")}` },
    { head: "Oldest job age", look: "r", label: "oldest", cell: (row) => (row.waiting > 0 ? duration(row.oldestSeconds * 1_000) : "–") },
    { head: "At workers", look: "r", label: "at workers", cell: (row) => row.locked.toLocaleString("en") },
    { head: "Done", look: "r", label: "done", title: () => "Of the last minute", cell: (row) => `${row.donePerSecond} /s` },
    { head: "Workers", look: "r", label: "workers", cell: (row) => row.workers },
    { head: "Last poll", look: "r mute", label: "last poll", cell: (row) => (row.lastPollAt === undefined ? "–" : <Ago at={row.lastPollAt} />) },
  ];
  return (
    <section className="card queues" aria-label="Job types">
      <h2>Queues, those first that wait longest</h2>
      <Read of={found}>
        {({ items }) =>
          items.length === 0 ? (
            <Empty title="No waiting jobs and no workers">
              <p>Job types with jobs that wait, or with workers, are listed within ten seconds.</p>
            </Empty>
          ) : (
            <div className="scroll" tabIndex={0} role="group" aria-label="Queues">
              <Table columns={columns} rows={items} keyOf={(row) => row.jobType} isCurrent={(row) => row.jobType === chosen} />
            </div>
          )
        }
      </Read>
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
  return (
    <>
      <Listing
        pages={pages}
        keyOf={(row) => row.id}
        more="Older"
        empty={
          <Empty title={jobType ? `No failed job of ${jobType}` : "No failed job"}>
            <p>A job fails for good when its retries are used up. Its instance can then be retried.</p>
          </Empty>
        }
        columns={[
          { head: "Job type", cell: (row) => <code>{row.jobType}</code> },
          { head: "Instance", cell: (row) => <InstanceLink id={row.instanceId} step={row.stepId} /> },
          { head: "Step", cell: (row) => row.stepId },
          { head: "Code", cell: (row) => (row.errorCode ? <code>{row.errorCode}</code> : "–") },
          { head: "Why", look: "el", title: (row) => row.reason, cell: (row) => row.reason },
          { head: "Worker", look: "mute", cell: (row) => row.workerId ?? "–" },
          { head: "Failed", look: "r mute", cell: (row) => <Ago at={row.failedAt} /> },
          operates && {
            head: <span className="sr">Retry</span>,
            look: "r",
            cell: (row) => (
              <button type="button" className="btn sm" aria-label={`Retry ${row.instanceId}`} onClick={() => setRetrying(row)}>
                Retry
              </button>
            ),
          },
        ]}
      />
      {operates && (
        <p className="mute note">
          Many at once: <Link href="/failures">by cause</Link>, or filter the <Link href="/instances?status=FAILED">failed instances</Link>, select them, Retry.
        </p>
      )}
      {retrying && (
        <Dialog title="Retry this instance?" verb="Retry" close={() => setRetrying(undefined)} act={(form) => engine.retry(retrying.instanceId, { note: String(form.get("note")).trim() }).then(() => pages.refetch()).then(() => undefined)}>
          <p>
            It goes on at <code>{retrying.stepId}</code>, with the variables it has and all its retries again.
          </p>
          <NoteField />
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
  const [title, meaning] = NOTHING[state];
  const leased = state === "LOCKED";
  return (
    <>
      <Listing
        pages={pages}
        keyOf={(row) => row.id}
        empty={
          <Empty title={title}>
            <p>{meaning}</p>
          </Empty>
        }
        columns={[
          { head: "Job type", cell: (row) => <code>{row.jobType}</code> },
          { head: "Instance", cell: (row) => <InstanceLink id={row.instanceId} step={row.stepId} /> },
          { head: "Step", cell: (row) => row.stepId },
          { head: "Attempt", look: "r", label: "attempt", cell: (row) => (leased ? row.attempt : (row.attempt ?? 0) + 1) },
          leased && { head: "Worker", look: "el", cell: (row) => row.workerId },
          leased && { head: "Progress", look: "el", title: (row) => progress(row), cell: (row) => progress(row) ?? "–" },
          leased && { head: "Lease left", look: "r", label: "lease left", cell: (row) => left(row.leaseUntil, now) },
          state === "BACKOFF" && { head: "Next attempt in", look: "r", label: "next in", cell: (row) => left(row.retryAt, now) },
          { head: leased ? "Has it for" : "Since", look: "r mute", cell: (row) => (leased ? duration(now - Date.parse(row.since)) : <Ago at={row.since} />) },
          leased &&
            operates && {
              head: "Actions",
              look: "r",
              cell: (row) => (
                <button type="button" className="btn sm" onClick={() => setUnlocking(row)}>
                  End lease…
                </button>
              ),
            },
        ]}
      />
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

/** What its worker told last. */
function progress(row: OpenJob): string | undefined {
  return row.progress === undefined ? undefined : typeof row.progress === "string" ? row.progress : JSON.stringify(row.progress);
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
