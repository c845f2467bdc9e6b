// What failed, by cause: each group with the way to its instances, where they are retried together.
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { useAddress } from "../address";
import { engine, type FailureGroup } from "../api/client";
import { WordFilter } from "../parts/list";
import { Empty } from "../parts/states";
import { Read, Table } from "../parts/table";
import { Ago } from "../parts/time";

const REFRESH_MS = 5_000;
const RANGES = { "15m": "15 minutes", "1h": "1 hour", "24h": "24 hours", "7d": "7 days", all: "any time" } as const;
const DEFAULT = "24h";
/** What the engine takes as the text of a cause. */
const CAUSE_MAX_CHARS = 1_000;

export function FailuresPage() {
  const [params, change] = useAddress();
  const definition = params.get("definitionId") ?? "";
  const asked = params.get("range") ?? DEFAULT;
  const range = asked in RANGES ? (asked as keyof typeof RANGES) : DEFAULT;
  const found = useQuery({ queryKey: ["failures", definition, range], queryFn: ({ signal }) => engine.failures(definition, range, signal), refetchInterval: REFRESH_MS });
  return (
    <>
      <div className="head">
        <h1>Failures by cause</h1>
        <label className="act version">
          Started within
          <select className="in" value={range} onChange={(event) => change({ range: event.target.value === DEFAULT ? undefined : event.target.value })}>
            {Object.entries(RANGES).map(([name, text]) => (
              <option key={name} value={name}>
                {text}
              </option>
            ))}
          </select>
        </label>
      </div>
      <WordFilter label="Definition" value={definition} mono apply={(word) => change({ definitionId: word })} />
      <section className="card" aria-label="Failures">
        <Read of={found}>
          {({ items, exact }) =>
            items.length === 0 ? (
              <Empty title="Nothing failed">
                <p>Of the instances that started within this time{definition && ` of ${definition}`}.</p>
              </Empty>
            ) : (
              <>
                <Table rows={items} keyOf={(row) => `${row.definitionId} ${row.version} ${row.stepId} ${row.cause}`} columns={COLUMNS} />
                {!exact && <p className="mute note">Of the newest 1,000 failures.</p>}
              </>
            )
          }
        </Read>
      </section>
    </>
  );
}

const COLUMNS = [
  { head: "Why", look: "el why-where", title: (row: FailureGroup) => row.text, cell: (row: FailureGroup) => <span className="mono">{row.text || "no reason was given"}</span> },
  { head: "Definition", cell: (row: FailureGroup) => `${row.definitionId} v${row.version}` },
  { head: "Step", cell: (row: FailureGroup) => row.stepId ?? "–" },
  { head: "First", look: "r mute", label: "first", cell: (row: FailureGroup) => <Ago at={row.first} /> },
  { head: "Last", look: "r mute", label: "last", cell: (row: FailureGroup) => <Ago at={row.last} /> },
  {
    head: "For example",
    cell: (row: FailureGroup) => (
      <Link href={`/instances/${encodeURIComponent(row.sample)}`}>
        <code>{row.sample}</code>
      </Link>
    ),
  },
  {
    head: "Instances",
    look: "r",
    cell: (row: FailureGroup) => (
      <Link className="btn sm" href={`/instances?${new URLSearchParams(filterOf(row))}`}>
        Show {row.count.toLocaleString("en")}
      </Link>
    ),
  },
];

function filterOf(row: FailureGroup): Record<string, string> {
  return {
    status: "FAILED",
    definitionId: row.definitionId,
    definitionVersion: String(row.version),
    ...(row.stepId !== undefined && { stepId: row.stepId }),
    ...(row.text && { cause: row.text.slice(0, CAUSE_MAX_CHARS) }),
  };
}
