// Schedules: what is started by the clock (docs/schedules.md): made, changed, paused, started, caught up, deleted.
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { engine, type Schedule, type ScheduleRun } from "../api/client";
import { Declared, Deleted, useDeclared } from "../parts/declared";
import { Dialog, NoteField } from "../parts/dialog";
import { Empty } from "../parts/states";
import { Badge, type Look } from "../parts/status";
import { type Column, Listing, Read, Table } from "../parts/table";
import { absolute, Ago, bothZones, duration, useNow } from "../parts/time";
import { useCan } from "../session";
import { ScheduleDialog } from "./policy";

const REFRESH_MS = 5_000;
const OUTCOMES: Record<string, [Look, string]> = {
  STARTED: ["ok", "Started"],
  BUFFERED: ["wait", "Waits for its turn"],
  SKIPPED: ["skip", "Skipped"],
  MISSED: ["retry", "Missed"],
  FAILED: ["fail", "Could not be started"],
};
const OVERLAPS: [string, string][] = [
  ["", "As the schedule says"],
  ["ALLOW", "Start it beside an open run"],
  ["BUFFER_ONE", "Wait until the open run has ended"],
  ["CANCEL_OTHER", "Cancel the open run"],
  ["SKIP", "Leave it out while a run is open"],
];

const MEETS: Record<string, string> = { SKIP: "the new one is left out", BUFFER_ONE: "one waits", BUFFER_ALL: "all wait", ALLOW: "they run together", CANCEL_OTHER: "the open one is cancelled" };
const CAUGHT_UP: Record<string, string> = { LAST: "the latest is started", ALL: "all are started", NONE: "is left out" };

type Act = "pause" | "resume" | "run" | "backfill" | "delete";

export function SchedulesPage() {
  const [params, change] = useAddress();
  const chosen = params.get("schedule") ?? undefined;
  const operates = useCan("operate");
  const queries = useQueryClient();
  const [asked, setAsked] = useState<[Act, Schedule]>();
  const [edited, setEdited] = useState<Schedule | "new">();
  const [told, setTold] = useState<[Schedule, ScheduleRun]>();
  const now = useNow();
  const pages = useInfiniteQuery({
    queryKey: ["schedules"],
    queryFn: ({ pageParam, signal }) => engine.schedules(pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
    refetchInterval: REFRESH_MS,
  });
  const declared = useDeclared("schedule");
  const ask = (act: Act, schedule: Schedule) => {
    setTold(undefined);
    setAsked([act, schedule]);
  };
  const columns: (Column<Schedule> | false)[] = [
    {
      head: "Schedule",
      cell: (row) => (
        <button type="button" className="link" onClick={() => change({ schedule: row.id === chosen ? undefined : row.id })}>
          <code>{row.id}</code>
        </button>
      ),
    },
    declared.size > 0 && { head: "Code", cell: (row) => <Declared of={declared.get(row.id)} done={() => pages.refetch()} /> },
    { head: "State", title: (row) => row.pauseNote, cell: (row) => (row.paused ? <Badge look="wait">Paused</Badge> : <Badge look="run">On</Badge>) },
    { head: "When", look: "el", title: when, cell: (row) => <code>{when(row)}</code> },
    { head: "Starts", look: "el", cell: (row) => <Started schedule={row} /> },
    {
      head: "Next",
      look: "r",
      label: "next",
      title: (row) => (row.nextTimes[0] === undefined ? undefined : bothZones(row.nextTimes[0])),
      cell: (row) => (row.paused ? "–" : until(row.nextTimes[0], now)),
    },
    { head: "Last", label: "last", cell: (row) => (row.runs[0] === undefined ? <span className="mute">Nothing yet</span> : <Outcome run={row.runs[0]} />) },
    operates && {
      head: <span className="sr">Actions</span>,
      look: "r",
      cell: (row) => (
        <span className="row-acts">
          <button type="button" className="btn sm" aria-label={`Change ${row.id}`} onClick={() => setEdited(row)}>
            Change…
          </button>
          <button type="button" className="btn sm bad" aria-label={`Delete ${row.id}`} onClick={() => ask("delete", row)}>
            Delete…
          </button>
          <button type="button" className="btn sm" aria-label={`Run ${row.id} now`} onClick={() => ask("run", row)}>
            Run now…
          </button>
          <button type="button" className="btn sm" aria-label={`${row.paused ? "Resume" : "Pause"} ${row.id}`} onClick={() => ask(row.paused ? "resume" : "pause", row)}>
            {row.paused ? "Resume…" : "Pause…"}
          </button>
        </span>
      ),
    },
  ];
  const done = async () => {
    await queries.invalidateQueries({ queryKey: ["schedule"] });
    await pages.refetch();
  };
  const close = () => setAsked(undefined);
  return (
    <>
      <div className="head">
        <h1>Schedules</h1>
        {operates && (
          <div className="act">
            <button type="button" className="btn pri" onClick={() => setEdited("new")}>
              New schedule
            </button>
          </div>
        )}
      </div>
      {told && <Told schedule={told[0]} run={told[1]} />}
      <section className="card" aria-label="Schedules">
        <Listing
          pages={pages}
          columns={columns}
          keyOf={(row) => row.id}
          isCurrent={(row) => row.id === chosen}
          empty={
            <Empty title="No schedules">
              <p>
                A schedule is made by <code>PUT /v1/schedules/…</code> or <code>penstock schedule set</code>.
              </p>
            </Empty>
          }
        />
      </section>
      <Deleted found={declared} done={() => pages.refetch()} />
      {chosen !== undefined && <Chosen id={chosen} backfill={operates ? (schedule) => ask("backfill", schedule) : undefined} />}
      {edited && <ScheduleDialog schedule={edited === "new" ? undefined : edited} close={() => setEdited(undefined)} done={done} />}
      {asked && <Asked act={asked[0]} schedule={asked[1]} close={close} done={done} told={(run) => setTold([asked[1], run])} />}
    </>
  );
}

function when(schedule: Schedule): string {
  const times = schedule.every === undefined ? (schedule.cron ?? []).join("; ") : `every ${schedule.every}`;
  return schedule.timeZone === undefined ? times : `${times} ${schedule.timeZone}`;
}

function until(at: string | undefined, now: number): string {
  if (at === undefined) return "never";
  const left = Date.parse(at) - now;
  return left > 0 ? `in ${duration(left)}` : "due";
}

function Started({ schedule }: { schedule: Schedule }) {
  const version = schedule.definitionVersion;
  return (
    <>
      <Link href={`/definitions/${encodeURIComponent(schedule.definitionId)}${version ? `?version=${version}` : ""}`}>{schedule.definitionId}</Link>
      {version ? <span className="mute"> v{version}</span> : null}
    </>
  );
}

function Outcome({ run }: { run: ScheduleRun }) {
  const [look, word] = OUTCOMES[run.outcome] ?? ["skip", run.outcome];
  return (
    <span title={run.reason}>
      <Badge look={look}>{run.instanceId === undefined ? word : <Link href={`/instances/${encodeURIComponent(run.instanceId)}`}>{word}</Link>}</Badge> <span className="mute">{run.at !== undefined && <Ago at={run.at} />}</span>
    </span>
  );
}

/** What became of a run that somebody asked for. */
function Told({ schedule, run }: { schedule: Schedule; run: ScheduleRun }) {
  return (
    <p className="told" role="status">
      <code>{schedule.id}</code> <Outcome run={run} />
      {run.reason !== undefined && <span className="mute">{run.reason}</span>}
    </p>
  );
}

/** One schedule: its rules, its next times and what became of the last ones. */
function Chosen({ id, backfill }: { id: string; backfill: ((schedule: Schedule) => void) | undefined }) {
  const found = useQuery({ queryKey: ["schedule", id], queryFn: ({ signal }) => engine.schedule(id, signal), refetchInterval: REFRESH_MS });
  return (
    <section className="card schedule" aria-label={`Schedule ${id}`}>
      <h2>
        {id}
        {backfill && found.data && (
          <span className="more">
            <button type="button" className="btn sm" onClick={() => backfill(found.data)}>
              Start times of the past…
            </button>
          </span>
        )}
      </h2>
      <Read of={found}>
        {(schedule) => (
          <>
            {schedule.note !== undefined && <p className="note">{schedule.note}</p>}
            {schedule.pauseNote !== undefined && <p className="note">Paused: {schedule.pauseNote}</p>}
            <dl className="facts inset">
              <Fact name="Overlap policy">{MEETS[schedule.overlap] ?? schedule.overlap}</Fact>
              <Fact name="Catch-up policy">{CAUGHT_UP[schedule.catchUp] ?? schedule.catchUp}</Fact>
              {schedule.jitter !== undefined && <Fact name="Later by up to">{schedule.jitter}</Fact>}
              {schedule.startAt !== undefined && <Fact name="From">{schedule.startAt}</Fact>}
              {schedule.endAt !== undefined && <Fact name="Until">{schedule.endAt}</Fact>}
              {schedule.pauseOnFailure && <Fact name="When a run fails">pauses</Fact>}
              {schedule.buffered > 0 && <Fact name="Wait for their turn">{schedule.buffered.toLocaleString("en")}</Fact>}
              {schedule.missed > 0 && <Fact name="Missed so far">{schedule.missed.toLocaleString("en")}</Fact>}
              {schedule.backfillUntil !== undefined && <Fact name="Past times are started up to">{schedule.backfillUntil}</Fact>}
            </dl>
            <Times schedule={schedule} />
          </>
        )}
      </Read>
    </section>
  );
}

function Times({ schedule }: { schedule: Schedule }) {
  const now = useNow();
  const zone = schedule.timeZone ?? "UTC";
  return (
    <div className="pair">
      <div>
        <h3>{schedule.paused ? "Next, once it is resumed" : "Next"}</h3>
        {schedule.nextTimes.length === 0 ? (
          <Empty title="No time is left" />
        ) : (
          <Table
            plain
            rows={schedule.nextTimes}
            keyOf={(at) => at}
            columns={[
              { head: `In ${zone}`, cell: (at) => <time dateTime={at}>{absolute(at, zone)}</time>, title: bothZones },
              { head: "Yours", look: "mute", cell: (at) => absolute(at) },
              { head: "In", look: "r mute", cell: (at) => until(at, now).replace("in ", "") },
            ]}
          />
        )}
      </div>
      <div>
        <h3>Last</h3>
        {schedule.runs.length === 0 ? (
          <Empty title="Nothing was started yet" />
        ) : (
          <Table
            plain
            rows={schedule.runs}
            keyOf={(run, at) => `${run.at} ${at}`}
            columns={[
              { head: "Outcome", cell: (run) => <Outcome run={run} /> },
              { head: "Why", look: "el mute", title: (run) => run.reason, cell: (run) => run.reason ?? "" },
            ]}
          />
        )}
      </div>
    </div>
  );
}

function Fact({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

interface AskedProps {
  act: Act;
  schedule: Schedule;
  close: () => void;
  done: () => Promise<void>;
  told: (run: ScheduleRun) => void;
}

function Asked({ act, schedule, close, done, told }: AskedProps) {
  const { id } = schedule;
  if (act === "pause")
    return (
      <Dialog title={`Pause ${id}?`} verb="Pause" danger close={close} act={(form) => engine.pauseSchedule(id, String(form.get("note")).trim()).then(done)}>
        <p>It starts nothing until you resume it. Running instances go on. Times that pass meanwhile are skipped, whatever it does with those that pass while no engine runs.</p>
        <NoteField label="Why, shown with the schedule and in the audit trail" />
      </Dialog>
    );
  if (act === "delete")
    return (
      <Dialog title={`Delete ${id}?`} verb="Delete" danger close={close} act={() => engine.deleteSchedule(id).then(done)}>
        <p>It starts nothing any more; what it started goes on.</p>
      </Dialog>
    );
  if (act === "resume")
    return (
      <Dialog title={`Resume ${id}?`} verb="Resume" close={close} act={() => engine.resumeSchedule(id).then(done)}>
        <p>It goes on with its next time: {until(schedule.nextTimes[0], Date.now())}.</p>
      </Dialog>
    );
  if (act === "run")
    return (
      <Dialog
        title={`Run ${id} now?`}
        verb="Run now"
        close={close}
        act={async (form) => {
          told(await engine.triggerSchedule(id, String(form.get("overlap"))));
          await done();
        }}
      >
        <p>It is started at once, also when the schedule is paused.</p>
        <div className="field">
          <label htmlFor="overlap">When its last run is still open</label>
          <select id="overlap" name="overlap" className="in">
            {OVERLAPS.map(([value, word]) => (
              <option key={value} value={value}>
                {word}
              </option>
            ))}
          </select>
        </div>
      </Dialog>
    );
  return (
    <Dialog
      title={`Start times of ${id} that have passed`}
      verb="Start them"
      close={close}
      act={(form) => engine.backfillSchedule(id, timeOf(form, "from"), timeOf(form, "to"), String(form.get("overlap"))).then(done)}
    >
      <p>Each of its times in this period is started once, in the background. Times of its latest 100 runs are skipped.</p>
      <div className="field">
        <label htmlFor="from">From, in your time zone</label>
        <input id="from" name="from" type="datetime-local" step="1" className="in" required />
      </div>
      <div className="field">
        <label htmlFor="to">Up to</label>
        <input id="to" name="to" type="datetime-local" step="1" className="in" required />
      </div>
      <div className="field">
        <label htmlFor="overlap">How</label>
        <select id="overlap" name="overlap" className="in">
          <option value="BUFFER_ALL">One after the other</option>
          <option value="ALLOW">All at once</option>
        </select>
      </div>
    </Dialog>
  );
}

/** What somebody chose, as the engine reads it. */
function timeOf(form: FormData, name: string): string {
  return new Date(String(form.get(name))).toISOString();
}
