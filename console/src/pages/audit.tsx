// Who did what on all engines: paused, changed, uploaded, made a token, signed in; with old and new values.
import { useInfiniteQuery } from "@tanstack/react-query";
import type { FormEvent } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { type AuditTrailRecord, engine } from "../api/client";
import { Empty } from "../parts/states";
import { type Column, Listing } from "../parts/table";
import { At } from "../parts/time";

const FIELDS = [
  ["kind", "Kind, such as QUEUE_CHANGED"],
  ["actor", "Who"],
  ["contains", "Detail contains"],
] as const;

const COLUMNS: Column<AuditTrailRecord>[] = [
  { head: "When", look: "mute", cell: (one) => <At at={one.at} /> },
  {
    head: "What",
    title: (one) => one.kind,
    cell: (one) => (
      <>
        {one.kind.replaceAll("_", " ").toLowerCase()}
        {one.detail !== undefined && <div className="detail mute">{one.detail}</div>}
        {one.old !== undefined && <div className="detail mute">before: {one.old}</div>}
      </>
    ),
  },
  { head: "Instance", label: "instance", cell: (one) => (one.instanceId === undefined ? "–" : <Link href={`/instances/${encodeURIComponent(one.instanceId)}?tab=audit`}><code>{one.instanceId}</code></Link>) },
  { head: "Who", label: "who", look: "mute", cell: (one) => one.actor ?? "–" },
];

export function AuditPage() {
  const [params, change] = useAddress();
  const filter = Object.fromEntries(FIELDS.flatMap(([name]) => (params.get(name) ? [[name, params.get(name)!]] : [])));
  const pages = useInfiniteQuery({
    queryKey: ["audit trail", filter],
    queryFn: ({ pageParam, signal }) => engine.auditTrail(filter, pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
  });
  const apply = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    change(Object.fromEntries(FIELDS.map(([name]) => [name, String(form.get(name) ?? "").trim()])));
  };
  return (
    <>
      <div className="head">
        <h1>Audit</h1>
      </div>
      <div className="flt">
        {/* A new key when the address changes from outside: the fields show what is applied. */}
        <form key={JSON.stringify(filter)} className="fields" onSubmit={apply}>
          {FIELDS.map(([name, label]) => (
            <input key={name} name={name} aria-label={label} placeholder={label} defaultValue={params.get(name) ?? ""} className="in" maxLength={256} />
          ))}
          <button type="submit" className="btn">
            Apply
          </button>
        </form>
      </div>
      <section className="card" aria-label="Audit">
        <Listing
          pages={pages}
          columns={COLUMNS}
          keyOf={(_, at) => at}
          more="Older"
          empty={
            <Empty title="No results">
              <p>{pages.hasNextPage ? "Older records may match." : "No record matches, or the audit trail is switched off."}</p>
            </Empty>
          }
        />
      </section>
    </>
  );
}
