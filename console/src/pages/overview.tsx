import { useEffect, useState } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { type Attention, engine, type Overview, type QueueRow } from "../api/client";
import { Dialog, NoteField } from "../parts/dialog";
import { RateChart, Spark } from "../parts/chart";
import { Icon } from "../parts/icons";
import { Empty, Problem, Skeleton } from "../parts/states";
import { Table } from "../parts/table";
import { Ago, At, bothZones, duration } from "../parts/time";
import { useCan } from "../session";
import { useOverview, useReadiness } from "../watch/watch";

const RANGES = [
  ["15m", "15 minutes"],
  ["1h", "1 hour"],
  ["24h", "24 hours"],
  ["7d", "7 days"],
] as const;
const OLD_CRITICAL_S = 300;
const OLD_WARNING_S = 30;

export function OverviewPage() {
  const [params, change] = useAddress();
  const range = RANGES.find(([name]) => name === params.get("range"))?.[0] ?? "15m";
  const found = useOverview(range);
  const words = RANGES.find(([name]) => name === range)![1];
  return (
    <>
      <div className="head">
        <h1>Overview</h1>
        <label className="act version">
          Last
          <select className="in" value={range} onChange={(event) => change({ range: event.target.value === "15m" ? undefined : event.target.value })}>
            {RANGES.map(([name, text]) => (
              <option key={name} value={name}>
                {text}
              </option>
            ))}
          </select>
        </label>
      </div>
      <EngineState />
      {found.error && !found.data ? (
        <Problem error={found.error} />
      ) : !found.data ? (
        <Skeleton />
      ) : (
        <>
          <Numbers overview={found.data} words={words} range={range} />
          <div className="grid rates">
            <Rates overview={found.data} />
            <Needs attention={found.data.attention} />
          </div>
          <Queues rows={found.data.queues} at={found.data.at} />
        </>
      )}
    </>
  );
}

/** What is wrong with the engine itself, in words; nothing when all is well. */
function EngineState() {
  const ready = useReadiness();
  if (ready.error) return <Problem error={ready.error} />;
  const { degraded = [], insecure = false } = ready.data ?? {};
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

function count(value: number): string {
  return value.toLocaleString("en");
}

function perSecond(value: number): string {
  return value >= 100 ? count(Math.round(value)) : String(Number(value.toPrecision(2)));
}

/** They are counted by steps of time: what is known is the end of the step. */
function bound(name: string, atMost: number | undefined, estimate: number): string {
  return atMost === undefined ? `${name} > ${duration(estimate * 1_000)}` : `${name} ≤ ${duration(atMost * 1_000)}`;
}

function Numbers({ overview, words, range }: { overview: Overview; words: string; range: string }) {
  const { p50, p50AtMost, p99, p99AtMost } = overview.durations;
  const oldest = overview.queues.reduce<QueueRow | undefined>((before, row) => (row.waiting > 0 && row.oldestSeconds > (before?.oldestSeconds ?? -1) ? row : before), undefined);
  return (
    <dl className="card kp" title={`as of ${bothZones(overview.at)}`}>
      <div>
        <dt>Started</dt>
        <dd>
          {perSecond(overview.started.perSecond)} <small>/s</small>
        </dd>
        <dd className="d">
          {count(overview.started.inRange)} in {words}
        </dd>
      </div>
      <div>
        <dt>Completed</dt>
        <dd>
          {perSecond(overview.completed.perSecond)} <small>/s</small>
        </dd>
        <dd className="d">
          {p50 === undefined || p99 === undefined ? `${count(overview.completed.inRange)} in ${words}` : `${bound("p50", p50AtMost, p50)}, ${bound("p99", p99AtMost, p99)}`}
        </dd>
      </div>
      <div>
        <dt>Failed</dt>
        <dd className={overview.failed.inRange ? "bad" : ""}>{count(overview.failed.inRange)}</dd>
        <dd className="d">{overview.failed.inRange ? <Link href={`/failures?range=${range}`}>by cause</Link> : overview.cancelled.inRange ? `${count(overview.cancelled.inRange)} cancelled` : `in ${words}`}</dd>
      </div>
      <div>
        <dt>Open now</dt>
        <dd>
          {overview.open.exact ? "" : "> "}
          {count(overview.open.count)}
        </dd>
        <dd className="d">
          {overview.engines} {overview.engines === 1 ? "engine" : "engines"}
        </dd>
      </div>
      <div>
        <dt>Oldest waiting job</dt>
        <dd className={oldest && oldest.oldestSeconds > OLD_CRITICAL_S ? "bad" : ""}>{oldest ? duration(oldest.oldestSeconds * 1_000) : "–"}</dd>
        <dd className="d">{oldest?.jobType ?? "nothing waits"}</dd>
      </div>
    </dl>
  );
}

function Rates({ overview }: { overview: Overview }) {
  const { started, completed, failed, since, stepSeconds } = overview.series;
  return (
    <section className="card" aria-label="Instances per second">
      <h2>
        Instances per second
        <span className="leg" aria-hidden="true">
          <i className="started" /> started <i className="completed" /> completed <i className="failed" /> failed
        </span>
      </h2>
      <RateChart
        since={since}
        stepSeconds={stepSeconds}
        lines={[
          { name: "started", look: "started", values: started },
          { name: "completed", look: "completed", values: completed },
          { name: "failed", look: "failed", values: failed },
        ]}
      />
    </section>
  );
}

function Needs({ attention }: { attention: Attention[] }) {
  const fresh = attention.filter((one) => one.acknowledged === undefined);
  const old = attention.filter((one) => one.acknowledged !== undefined);
  return (
    <section className="card" aria-label="Needs attention">
      <h2>
        Needs attention
        {attention.some((one) => one.kind === "failures") && (
          <span className="more">
            <Link href="/failures?range=all">all failures by cause</Link>
          </span>
        )}
      </h2>
      {fresh.length === 0 ? (
        <Empty title="Nothing">
          <p>{old.length > 0 ? "All that needs attention is acknowledged." : "No instance stands failed, every queue has workers, all engines are there."}</p>
        </Empty>
      ) : (
        <ul className="att">
          {fresh.map((one) => (
            <Need key={one.key} one={one} />
          ))}
        </ul>
      )}
      {old.length > 0 && (
        <details className="acknowledged">
          <summary>{count(old.length)} acknowledged</summary>
          <ul className="att">
            {old.map((one) => (
              <Need key={one.key} one={one} />
            ))}
          </ul>
        </details>
      )}
    </section>
  );
}

function Need({ one }: { one: Attention }) {
  const { acknowledged } = one;
  return (
    <li>
      <span className={`mark ${one.severity}`}>
        <Icon name={one.kind === "failures" ? "close" : "alert"} />
      </span>
      <div>
        <b>{one.text}</b>
        {one.detail && <p className={one.kind === "failures" ? "mono" : ""}>{one.detail}</p>}
        {one.since && (
          <p>
            the first <Ago at={one.since} />
          </p>
        )}
        {acknowledged && (
          <p>
            Acknowledged{acknowledged.by && ` by ${acknowledged.by}`} <Ago at={acknowledged.at} />, until <At at={acknowledged.until} />
            {acknowledged.note && `: ${acknowledged.note}`}
          </p>
        )}
      </div>
      <span className="row-acts">
        {one.query !== undefined && (
          <Link className="btn sm" href={`/instances?${new URLSearchParams(one.query)}`}>
            Show {count(one.count ?? 0)}
            {one.exact === false && "+"}
          </Link>
        )}
        {one.jobType !== undefined && (
          <Link className="btn sm" href={queueHref(one.jobType)}>
            Show queue
          </Link>
        )}
        {(one.kind === "engine-gone" || one.kind === "engine-silent") && (
          <Link className="btn sm" href="/engines">
            Engines
          </Link>
        )}
        <Acknowledge one={one} />
      </span>
    </li>
  );
}

/** It holds for a day, or until more have failed. */
function Acknowledge({ one: { key, count: told = 0, text, acknowledged } }: { one: Attention }) {
  const operates = useCan("operate");
  const [asked, setAsked] = useState(false);
  const [done, setDone] = useState(false);
  useEffect(() => setDone(false), [acknowledged]);
  if (!operates || key === undefined) return null;
  const said = (act: Promise<void>) => act.then(() => setDone(true));
  return (
    <>
      <button type="button" className="btn sm" disabled={done} aria-label={`${acknowledged ? "Withdraw" : "Acknowledge"}: ${text}`} onClick={() => (acknowledged ? void said(engine.withdrawAcknowledgement(key)).catch(() => setDone(false)) : setAsked(true))}>
        {done ? "Done" : acknowledged ? "Withdraw" : "Acknowledge…"}
      </button>
      {asked && (
        <Dialog title="Acknowledge" verb="Acknowledge" close={() => setAsked(false)} act={(form) => said(engine.acknowledge(key, told, String(form.get("note")).trim()))}>
          <p>{text}. It moves below the others for some time (attention_acknowledged_hours), and comes back when more instances have failed.</p>
          <NoteField label="Note for those who look next" />
        </Dialog>
      )}
    </>
  );
}

function queueHref(jobType: string): string {
  return `/jobs?${new URLSearchParams({ jobType, state: "WAITING" })}`;
}

function Queues({ rows: all, at }: { rows: QueueRow[]; at: string }) {
  const rows = all.filter((row) => row.waiting > 0 || row.workers > 0);
  const most = Math.max(1, ...rows.map((row) => row.waiting));
  const idle = all.length - rows.length;
  return (
    <section className="card queues" aria-label="Queues" title={`as of ${bothZones(at)}`}>
      <h2>
        Queues
        <span className="more">
          {count(rows.length)} with work or workers{idle > 0 && `, ${count(idle)} idle`} · <Link href="/jobs">all jobs</Link>
        </span>
      </h2>
      {rows.length === 0 ? (
        <Empty title="No job waits and no worker polls">
          <p>
            Start a worker: <code>python examples/order_worker.py</code> does the jobs of the example.
          </p>
        </Empty>
      ) : (
        <Table
          rows={rows}
          keyOf={(row) => row.jobType}
          columns={[
            {
              head: "Job type",
              cell: (row) => (
                <Link href={queueHref(row.jobType)}>
                  <code>{row.jobType}</code>
                </Link>
              ),
            },
            { head: "Waiting", look: "r", label: "waiting", cell: (row) => `${row.waitingExact ? "" : "> "}${count(row.waiting)}` },
            { head: <span className="sr">How many, as a bar</span>, look: "bar", cell: (row) => <Bar share={row.waiting / most} age={ageOf(row)} /> },
            { head: "Oldest job age", look: "r", label: "oldest", cell: (row) => <span className={`age ${ageOf(row)}`}>{row.waiting ? duration(row.oldestSeconds * 1_000) : "–"}</span> },
            { head: "In progress", look: "r", label: "in progress", title: () => "LOCKED: jobs that workers have", cell: (row) => count(row.locked) },
            {
              head: "Workers",
              look: "r",
              label: "workers",
              title: (row) => (row.lastPollAt === undefined ? undefined : `last poll ${bothZones(row.lastPollAt)}`),
              cell: (row) => row.workers || (row.waiting ? <span className="none">none</span> : "0"),
            },
            { head: "Done", look: "r", label: "done", title: () => "Of the last minute", cell: (row) => `${perSecond(row.donePerSecond)} /s` },
            { head: "15 minutes", cell: (row) => <Spark values={row.series} bad={ageOf(row) === "crit"} /> },
          ]}
        />
      )}
    </section>
  );
}

function ageOf(row: QueueRow): "" | "crit" | "warn" {
  if (row.waiting === 0) return "";
  return row.oldestSeconds > OLD_CRITICAL_S ? "crit" : row.oldestSeconds > OLD_WARNING_S ? "warn" : "";
}

function Bar({ share, age }: { share: number; age: string }) {
  return (
    <svg width="110" height="6" aria-hidden="true">
      <rect className={age} width={share ? Math.max(4, 110 * share) : 2} height="6" rx="3" />
    </svg>
  );
}
