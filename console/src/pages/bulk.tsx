// Acts on many instances: what they would meet first, then their progress, which outlives this page.
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { Link } from "wouter";
import { type BulkAction, type BulkRequest, type BulkView, engine } from "../api/client";
import { variablesOf } from "../parts/dialog";
import { Icon } from "../parts/icons";
import { More } from "../parts/list";
import { Empty, Problem, Skeleton } from "../parts/states";
import { Badge } from "../parts/status";
import { Ago, duration } from "../parts/time";
import { useCan } from "../session";

const VERBS: Record<BulkAction, string> = { retry: "Retry", cancel: "Cancel", signal: "Signal" };
const REFRESH_MS = 1_000;
/** More than these need the number typed. */
const TYPED_ABOVE = 100;

function count(value: number): string {
  return value.toLocaleString("en");
}

/** Which instances: those of a filter, or those that were ticked. */
export type Chosen = Pick<BulkRequest, "filter" | "ids">;

export function BulkPane({ action, chosen, close }: { action: BulkAction; chosen: Chosen; close: () => void }) {
  const queries = useQueryClient();
  const [refused, setRefused] = useState<string>();
  const [busy, setBusy] = useState(false);
  const [cause, setCause] = useState<string>();
  const pane = useRef<HTMLElement>(null);
  useEffect(() => {
    pane.current?.scrollIntoView({ block: "nearest" }); // above the list on a narrow screen
  }, []);
  const filter = cause === undefined || !chosen.filter ? chosen.filter : { ...chosen.filter, cause };
  const wanted: Chosen = filter ? { filter } : chosen;
  // A signal's step is asked for below; what it would meet does not depend on it.
  const preview = useQuery({
    queryKey: ["bulk", "preview", action, wanted],
    queryFn: ({ signal }) => engine.previewBulk({ action: action === "signal" ? "cancel" : action, ...wanted }, signal),
  });
  const found = preview.data && { byCause: [], byStep: [], ...preview.data };
  const number = found ? `${found.exact ? "" : "> "}${count(found.count)}` : "…";
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const text = (name: string) => String(form.get(name) ?? "").trim();
    setBusy(true);
    setRefused(undefined);
    try {
      if (found && found.count > TYPED_ABOVE && text("typed") !== String(found.count)) throw new Error(`Type ${found.count} to go on`);
      await engine.startBulk({
        action,
        ...wanted,
        ...(Number(text("rate")) > 0 && { perSecond: Number(text("rate")) }),
        ...(text("note") && { note: text("note") }),
        ...(action === "signal" && { stepId: text("step"), variables: variablesOf(text("variables")) }),
      });
      await queries.invalidateQueries({ queryKey: ["bulk", "list"] });
      close();
    } catch (error) {
      setRefused(error instanceof Error ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <section ref={pane} className="card pane" aria-label={`${VERBS[action]} many instances`}>
      <h2>
        {VERBS[action]} many instances
        <button type="button" className="iconbtn" aria-label="Close" onClick={close}>
          <Icon name="close" />
        </button>
      </h2>
      {preview.error ? (
        <Problem error={preview.error} retry={() => preview.refetch()} />
      ) : !found ? (
        <Skeleton rows={3} />
      ) : (
        <form onSubmit={submit}>
          <p className="big">{number}</p>
          <p className="mute">{found.exact ? "instances match now, counted exactly" : "instances match now; more than were counted"}. Those that start meanwhile are left out.</p>
          {found.byCause.length + found.byStep.length > 0 && (
            <dl className="sum">
              {found.byCause.map((one) => (
                <div key={one.cause}>
                  <dt title={one.text}>{one.text}</dt>
                  <dd>
                    {found.byCause.length > 1 && chosen.filter?.status === "FAILED" && (
                      <button type="button" className="link" onClick={() => setCause(one.text)}>
                        Only these
                      </button>
                    )}
                    <b>{count(one.count)}</b>
                  </dd>
                </div>
              ))}
              {found.byStep.map((one) => (
                <div key={one.stepId}>
                  <dt>at {one.stepId}</dt>
                  <dd>
                    <b>{count(one.count)}</b>
                  </dd>
                </div>
              ))}
            </dl>
          )}
          {action === "signal" && (
            <>
              <div className="field">
                <label htmlFor="bulk-step">Step that waits</label>
                <input id="bulk-step" name="step" className="in mono" required />
              </div>
              <div className="field">
                <label htmlFor="bulk-variables">Variables, as a JSON object</label>
                <textarea id="bulk-variables" name="variables" className="in mono" defaultValue="{}" spellCheck={false} />
              </div>
            </>
          )}
          <div className="field">
            <label htmlFor="bulk-rate">How many per second; empty: as fast as it goes</label>
            <input id="bulk-rate" name="rate" className="in" type="number" min="0.1" max="10000" step="any" />
          </div>
          {action !== "signal" && (
            <div className="field">
              <label htmlFor="bulk-note">Note for the audit trail</label>
              <input id="bulk-note" name="note" className="in" maxLength={4096} />
            </div>
          )}
          {found.count > TYPED_ABOVE && (
            <div className="field">
              <label htmlFor="bulk-typed">Type {found.count} to confirm</label>
              <input id="bulk-typed" name="typed" className="in" inputMode="numeric" autoComplete="off" required />
            </div>
          )}
          {refused !== undefined && (
            <p className="refused" role="alert">
              {refused}
            </p>
          )}
          <button type="submit" className={`btn ${action === "cancel" ? "bad" : "pri"}`} disabled={busy || found.count === 0}>
            {VERBS[action]} {number} {found.count === 1 ? "instance" : "instances"}
          </button>
        </form>
      )}
    </section>
  );
}

export function Progress({ view }: { view: BulkView }) {
  const queries = useQueryClient();
  const operates = useCan("operate");
  const over = view.done + view.skipped + view.failed;
  const part = view.state === "DONE" ? 1 : Math.min(1, over / Math.max(1, view.total));
  const stop = () => engine.stopBulk(view.id).then(() => queries.invalidateQueries({ queryKey: ["bulk"] }));
  return (
    <li className="bulk">
      <div className="line">
        <Link href={`/bulk/${encodeURIComponent(view.id)}`} className="el">
          {VERBS[view.action as BulkAction] ?? view.action} · {describe(view)}
        </Link>
        {view.state === "RUNNING" ? (
          operates && (
            <button type="button" className="link" onClick={stop}>
              Stop
            </button>
          )
        ) : (
          <Badge look={view.failed ? "fail" : view.state === "DONE" ? "ok" : "skip"}>{view.state === "DONE" ? "Done" : "Stopped"}</Badge>
        )}
      </div>
      <progress value={part} max={1} aria-label={`${VERBS[view.action as BulkAction] ?? view.action}, progress`} />
      <p className="mute">
        {count(view.done)} of {view.totalExact ? "" : "> "}
        {count(view.total)}
        {view.skipped > 0 && ` · ${count(view.skipped)} had nothing to do`}
        {view.failed > 0 && ` · ${count(view.failed)} failed`}
        {view.actor && ` · by ${view.actor}`} · <Ago at={view.createdAt} />
        {view.endedAt && `, in ${duration(Date.parse(view.endedAt) - Date.parse(view.createdAt))}`}
      </p>
      {view.note && <p className="mute">{view.note}</p>}
      {view.errors.length > 0 && (
        <ul className="mono refused">
          {view.errors.map((text) => (
            <li key={text}>{text}</li>
          ))}
        </ul>
      )}
    </li>
  );
}

function describe(view: BulkView): string {
  const filter = view.filter as { status?: string; definitionId?: string; businessKey?: string; cause?: string; ids?: string[] };
  if (filter.ids) return `${count(filter.ids.length)} chosen`;
  return [filter.definitionId, filter.status?.toLowerCase(), filter.businessKey, filter.cause].filter(Boolean).join(" · ");
}

/** Those that run, beside the list of instances; nothing when none does. */
export function Running() {
  const found = useQuery({ queryKey: ["bulk", "list"], queryFn: ({ signal }) => engine.bulks("", signal), refetchInterval: REFRESH_MS * 2 });
  const shown = (found.data?.items ?? []).filter((view) => view.state === "RUNNING" || Date.now() - Date.parse(view.endedAt ?? view.createdAt) < 60_000).slice(0, 5);
  if (shown.length === 0) return null;
  return (
    <section className="card pane" aria-label="Bulk operations">
      <h2>
        Bulk operations
        <span className="more">
          <Link href="/bulk">Show all</Link>
        </span>
      </h2>
      <ul>
        {shown.map((view) => (
          <Progress key={view.id} view={view} />
        ))}
      </ul>
    </section>
  );
}

/** One operation, as long as it runs and afterwards. */
export function BulkOperationPage({ id }: { id: string }) {
  const found = useQuery({
    queryKey: ["bulk", id],
    queryFn: ({ signal }) => engine.bulk(id, signal),
    refetchInterval: (query) => (query.state.data?.state === "RUNNING" ? REFRESH_MS : false),
  });
  if (found.error && !found.data) return <Problem error={found.error} retry={() => found.refetch()} />;
  if (!found.data) return <Skeleton rows={3} />;
  const { action, perSecond, stepId, createdAt, endedAt } = found.data;
  const filter = found.data.filter as Record<string, unknown>;
  const isFilter = !("ids" in filter);
  return (
    <>
      <div className="head">
        <h1>{VERBS[action as BulkAction] ?? action} many instances</h1>
        <span className="tag">{id}</span>
        {isFilter && (
          <div className="act">
            <Link className="btn" href={`/instances?${new URLSearchParams(Object.entries(filter).map(([name, value]): [string, string] => [name, String(value)]))}`}>
              Instances that match now
            </Link>
          </div>
        )}
      </div>
      <section className="card pane" aria-label="Bulk operation">
        <ul>
          <Progress view={found.data} />
        </ul>
        <dl className="facts">
          <div>
            <dt>Begun</dt>
            <dd>
              <Ago at={createdAt} />
            </dd>
          </div>
          {endedAt !== undefined && (
            <div>
              <dt>Ended</dt>
              <dd>
                <Ago at={endedAt} />
              </dd>
            </div>
          )}
          {stepId !== undefined && (
            <div>
              <dt>Step</dt>
              <dd>{stepId}</dd>
            </div>
          )}
          <div>
            <dt>How fast</dt>
            <dd>{perSecond === undefined ? "as fast as it goes" : `${perSecond} per second`}</dd>
          </div>
        </dl>
        <p className="mute">Instances that were started after it began are left out. It goes on whatever happens to this page or to an engine.</p>
      </section>
    </>
  );
}

export function BulkPage() {
  const pages = useInfiniteQuery({
    queryKey: ["bulk", "list", "all"],
    queryFn: ({ pageParam, signal }) => engine.bulks(pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
    refetchInterval: REFRESH_MS * 2,
  });
  const rows = pages.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <>
      <div className="head">
        <h1>Bulk operations</h1>
      </div>
      <section className="card pane" aria-label="Bulk operations">
        {pages.error ? (
          <Problem error={pages.error} retry={() => pages.refetch()} />
        ) : pages.isPending ? (
          <Skeleton />
        ) : rows.length === 0 ? (
          <Empty title="None yet">
            <p>
              Filter the <Link href="/instances">instances</Link>, then choose Retry, Cancel or Signal above the list.
            </p>
          </Empty>
        ) : (
          <ul>
            {rows.map((view) => (
              <Progress key={view.id} view={view} />
            ))}
          </ul>
        )}
        <More pages={pages} word="Older" />
      </section>
    </>
  );
}
