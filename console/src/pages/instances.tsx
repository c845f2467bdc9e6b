import { keepPreviousData, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, type MouseEvent, useEffect, useMemo, useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import { useAddress } from "../address";
import { type BulkAction, type BulkFilter, type BulkRequest, engine, type InstanceFilter, type InstanceState, isFinal, type ListedInstance, PAGE_ITEMS } from "../api/client";
import { useElkSoon } from "../graph/elk";
import { useShortcuts } from "../keyboard";
import { CopyButton, CopyId } from "../parts/copy";
import { Icon } from "../parts/icons";
import { Empty, Problem, Skeleton } from "../parts/states";
import { InstanceStatusBadge } from "../parts/status";
import { Ago } from "../parts/time";
import type { Chosen, Outcome } from "./bulk";
import { Running } from "./bulkrunning";
import { BulkPane, StartDialog } from "./places";
import { useCan } from "../session";
import { useWatch } from "../watch/watch";

const STATUSES = ["ACTIVE", "WAITING", "FAILED", "COMPLETED", "CANCELLED"] as const;
const WORDS: Record<string, string> = { ACTIVE: "Running", WAITING: "Waiting", FAILED: "Failed", COMPLETED: "Completed", CANCELLED: "Cancelled" };
/** Within a status: those ACTIVE ones, and those WAITING ones. */
const KINDS = [
  ["delayed", "Delayed"],
  ["blocked", "Blocked"],
] as const;
const FIELDS = [
  ["definitionId", "Definition"],
  ["businessKey", "Business key"],
  ["instanceKey", "Instance key"],
] as const;
/** Those that a link from elsewhere sets more often than a person does. */
const MORE_FIELDS = [
  ["businessKeyPrefix", "Business key begins with"],
  ["definitionVersion", "Version"],
  ["stepId", "Failed at step"],
  ["cause", "Failure like"],
  ["errorContains", "Error contains"],
  ["bulkId", "Bulk operation"],
  ["startedAfter", "Started after, 2026-01-31T12:00Z"],
  ["startedBefore", "Started before"],
  ["currentStepId", "Stands on step"],
] as const;
const ALL_FIELDS = [...FIELDS, ...MORE_FIELDS];
/** They imply the status. */
const OF_FAILURES = ["stepId", "cause", "errorContains"] as const;
/** Those that a bulk operation can't be told. */
const NOT_IN_BULK = ["instanceKey", "delayed", "blocked", "bulkId", "open", "currentStepId"] as const;
const ORDERS = { newest: "newest first", oldest: "oldest first", businessKey: "by business key", ended: "those that ended last first", changed: "those that changed last first" } as const;
type Order = keyof typeof ORDERS;
/** What an order leaves out. */
const LEFT_OUT: Partial<Record<Order, string>> = { businessKey: ": only those that have one", ended: ": only those that have ended" };
/** Of a variable that is a search attribute: its value, or bounds. */
const ATTRIBUTE = "attr.";
/** Columns that can be left out, with the words of their heads. */
const COLUMNS = { businessKey: "Business key", definition: "Definition", where: "Why, or where", started: "Started", changed: "Changed", ended: "Ended" } as const;
type ColumnName = keyof typeof COLUMNS;
/** Columns of times by which a list is sorted, latest first. */
const TIMES = ["changed", "ended"] as const;
const HIDDEN_KEY = "penstock.instances.hidden";
const SIZES = [25, 50, 100, 200] as const;
const NEWER_MS = 3_000;
/** Not counted further (engine/status/watch.py). */
const NEWER_MAX = 100;
const NEWER_READ = 10;
const WATCHED_ROWS = 100;
/** Of these at once the new state is read. */
const CHANGED_ROWS = 20;

function filterOf(params: URLSearchParams): InstanceFilter {
  const status = STATUSES.find((one) => one === params.get("status")) ?? (OF_FAILURES.some((name) => params.get(name)) ? "FAILED" : undefined);
  const kind = KINDS.find(([name]) => params.get(name) === "true");
  const open = !status && params.get("open") === "true" && params.has("bulkId");
  return Object.fromEntries([...(status ? [["status", status]] : []), ...(open ? [["open", "true"]] : []), ...(kind ? [[kind[0], "true"]] : []), ...ALL_FIELDS.flatMap(([name]) => (params.get(name) ? [[name, params.get(name)]] : [])), ...attributesOf(params)]);
}

/** `attr.customer=4711`, as the address and the engine have them. */
function attributesOf(params: URLSearchParams): [string, string][] {
  return [...params].filter(([name, value]) => name.startsWith(ATTRIBUTE) && value);
}

function hasAttributes(filter: InstanceFilter): boolean {
  return Object.keys(filter).some((name) => name.startsWith(ATTRIBUTE));
}

export function InstancesPage() {
  const [params, change] = useAddress();
  const address = params.toString();
  // biome-ignore lint: the same address is the same filter
  const filter = useMemo(() => filterOf(params), [address]);
  const filtered = Object.keys(filter).length > 0;
  const queries = useQueryClient();
  const operates = useCan("operate");
  const [starting, setStarting] = useState(false);
  const [ticked, setTicked] = useState<ReadonlySet<string>>(new Set());
  /** By which all were selected: it means nothing of another filter. */
  const [allOf, setAllOf] = useState<InstanceFilter>();
  const all = allOf === filter;
  const [asked, setAsked] = useState<BulkAction>();
  const chosen = useMemo((): Chosen => (all ? { filter: bulkFilterOf(filter) } : { ids: [...ticked] }), [all, filter, ticked]);
  const chosenNow = useRef(chosen);
  chosenNow.current = chosen;
  /** What is on its way to the engine: its pane stands until there is an answer, whatever the list shows by then. */
  const [sent, setSent] = useState<{ action: BulkAction; chosen: Chosen }>();
  const [outcome, tell] = useState<Outcome>();
  const pane = sent?.action ?? (all || ticked.size > 0 ? asked : undefined);
  const keys = useMemo(() => {
    const act = (action: BulkAction) => () => operates && (all || ticked.size > 0) && ask(action);
    return { "b r": act("retry"), "b c": act("cancel"), "b s": act("signal"), "b m": act("skip") };
  }, [operates, all, ticked]);
  useShortcuts(keys);
  useEffect(() => {
    if (pane === undefined) setAsked(undefined); // what is selected next is asked about anew
  }, [pane]);
  const ask = (action: BulkAction) => {
    tell(undefined);
    setAsked(action);
  };
  const selectsAll = filtered && !hasAttributes(filter) && !NOT_IN_BULK.some((name) => name in filter);
  const clear = () => {
    setTicked(new Set());
    setAllOf(undefined);
    setAsked(undefined);
  };
  const send = async (request: BulkRequest, text: string): Promise<Outcome> => {
    setSent({ action: request.action, chosen });
    const told = await engine.startBulk(request).then(
      ({ id }): Outcome => ({ id, text }),
      (error: Error): Outcome => ({ text, refused: error.message }),
    );
    setSent(undefined);
    tell(told);
    if (told.id === undefined) {
      // Beside what is asked of others by now it would be said of these.
      setAsked((now) => (now === request.action && chosenNow.current === chosen ? now : undefined));
      return told;
    }
    void queries.invalidateQueries({ queryKey: ["bulk", "list"] });
    // What was selected meanwhile stays so, and is asked about anew.
    setTicked((now) => (now === ticked ? new Set() : now));
    setAllOf((now) => (now === allOf ? undefined : now));
    setAsked(undefined);
    return told;
  };
  const size = SIZES.find((one) => String(one) === params.get("size")) ?? PAGE_ITEMS;
  const order: Order = (Object.keys(ORDERS) as Order[]).find((one) => one === params.get("order")) ?? "newest";
  const sort = (next: Order) => change({ order: next === "newest" ? undefined : next });
  const [hidden, setHidden] = useState<readonly ColumnName[]>(hiddenColumns);
  const pages = useInfiniteQuery({
    queryKey: ["instances", filter, size, order],
    queryFn: ({ pageParam, signal }) => engine.instances(filter, pageParam, size, signal, order),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
    placeholderData: keepPreviousData,
    refetchOnWindowFocus: false, // rows do not move under the pointer
  });
  const rows = useMemo(() => pages.data?.pages.flatMap((page) => page.items) ?? [], [pages.data]);
  // Nothing is done to what nobody sees any more; but what was sent is over first.
  const seen = useMemo(() => new Set(rows.map((row) => row.id)), [rows]);
  const left = [...ticked].filter((id) => seen.has(id));
  if (!sent && pages.data && left.length < ticked.size) setTicked(new Set(left));
  const definitions = new Set(rows.flatMap((row) => (ticked.has(row.id) ? [row.definitionId] : [])));
  useElkSoon(rows.length > 0);
  // Rows that are shown change in place: none comes, goes or moves.
  const watched = rows.filter((row) => !isFinal(row)).slice(0, WATCHED_ROWS).map((row) => row.id);
  const renew = async (ids: string[]) => {
    const found = await Promise.all(ids.map((id) => engine.state(id).catch(() => undefined)));
    const now = new Map(found.flatMap((state) => (state ? [[state.instance.id, { ...state.instance, where: state.tokens, changedAt: changedAt(state) }] as const] : [])));
    queries.setQueryData<typeof pages.data>(["instances", filter, size, order], (before) =>
      before && { ...before, pages: before.pages.map((page) => ({ ...page, items: page.items.map((row) => now.get(row.id) ?? row) })) },
    );
  };
  useWatch(watched, undefined, async ({ changed, first }) => {
    for (let at = 0; at < changed.length && !first; at += CHANGED_ROWS) await renew(changed.slice(at, at + CHANGED_ROWS));
  });
  return (
    <>
      <div className="head">
        <h1>Instances</h1>
        <div className="act">
          <CopyButton small={false} text={() => location.href}>
            Copy link to this view
          </CopyButton>
          <Link className="btn" href="/batches">
            Batches
          </Link>
          {operates && (
            <button type="button" className="btn pri" onClick={() => setStarting(true)}>
              <Icon name="play" />
              Start an instance
            </button>
          )}
        </div>
      </div>
      <Filters params={params} change={change} />
      <div role="status">
        {outcome?.id !== undefined && (
          <p className="told">
            {outcome.text}: begun. <Link href={`/bulk/${encodeURIComponent(outcome.id)}`}>How far it is</Link>
          </p>
        )}
        {outcome?.refused !== undefined && pane === undefined && (
          <p className="told">
            {outcome.text}: refused. {outcome.refused}
          </p>
        )}
      </div>
      <div className={pane ? "beside" : ""}>
      <section className="card" aria-label="Instances" aria-busy={pages.isFetching}>
        {operates && selectsAll && ticked.size === 0 && !all && rows.length > 0 && (
          <div className="selbar none">
            <Matching filter={filter} />
            <button type="button" className="link" onClick={() => setAllOf(filter)}>
              Select all that match
            </button>
            <Acts
              of=" all"
              ask={(action) => {
                setAllOf(filter);
                ask(action);
              }}
            />
          </div>
        )}
        {(ticked.size > 0 || all) && (
          <div className="selbar">
            <span>{all ? "All that match are selected, also those on other pages" : `${ticked.size} selected`}</span>
            {!all && selectsAll && (
              <button type="button" className="link" onClick={() => setAllOf(filter)}>
                Select all that match
              </button>
            )}
            <button type="button" className="link" onClick={clear}>
              Clear
            </button>
            <Acts of="" ask={ask} />
          </div>
        )}
        {rows.length > 0 && order === "newest" && <Newer filter={filter} newest={rows[0]!.id} show={() => pages.refetch()} />}
        {pages.error ? (
          <Problem error={pages.error} retry={() => pages.refetch()} />
        ) : pages.isPending ? (
          <Skeleton />
        ) : rows.length === 0 ? (
          <Empty title={filtered ? "No results" : "No instance yet"}>
            {filtered ? (
              <button type="button" className="btn sm" onClick={() => change({ status: undefined, delayed: undefined, blocked: undefined, open: undefined, order: undefined, ...Object.fromEntries([...ALL_FIELDS, ...attributesOf(params)].map(([name]) => [name, undefined])) })}>
                Clear filters
              </button>
            ) : (
              <p>
                Start one of a <Link href="/definitions">definition</Link>, here or by <code>POST /v1/instances</code>.
              </p>
            )}
          </Empty>
        ) : (
          <Rows rows={rows} ticked={all ? undefined : ticked} tick={(ids) => (setAllOf(undefined), setTicked(ids))} hidden={hidden} order={order} sort={sort} />
        )}
        {rows.length > 0 && (
          <div className="pg">
            <span>
              {rows.length}
              <Count filter={filter} rows={rows.length} /> shown, {ORDERS[order]}
              {LEFT_OUT[order]}
            </span>
            <label className="version">
              Rows a page{" "}
              <select className="in" value={size} onChange={(event) => change({ size: event.target.value === String(PAGE_ITEMS) ? undefined : event.target.value })}>
                {SIZES.map((one) => (
                  <option key={one}>{one}</option>
                ))}
              </select>
            </label>
            <Columns hidden={hidden} choose={setHidden} />
            {pages.hasNextPage && (
              <button type="button" className="btn sm" disabled={pages.isFetchingNextPage} onClick={() => pages.fetchNextPage()}>
                {order === "newest" ? "Older" : "More"}
              </button>
            )}
          </div>
        )}
      </section>
      {pane && (
        <BulkPane
          key={pane}
          action={pane}
          ask={setAsked}
          chosen={sent?.chosen ?? chosen}
          definitionId={all ? filter.definitionId : definitions.size === 1 ? [...definitions][0] : undefined}
          send={send}
          close={() => {
            tell(undefined);
            clear();
          }}
        />
      )}
      </div>
      <Running />
      {starting && <StartDialog definitionId={filter.definitionId ?? ""} close={() => setStarting(false)} />}
    </>
  );
}

/** As the engine's list says it, as far as a state tells. */
function changedAt({ instance, tokens }: InstanceState): string {
  return instance.completedAt ?? tokens.map((token) => token.since ?? "").reduce((one, other) => (one > other ? one : other), instance.startedAt);
}

function hiddenColumns(): ColumnName[] {
  const kept = (localStorage.getItem(HIDDEN_KEY) ?? TIMES.join()).split(",");
  return (Object.keys(COLUMNS) as ColumnName[]).filter((name) => kept.includes(name));
}

/** Which columns are shown: kept by this browser. */
function Columns({ hidden, choose }: { hidden: readonly ColumnName[]; choose: (hidden: ColumnName[]) => void }) {
  const toggle = (name: ColumnName) => {
    const after = hidden.includes(name) ? hidden.filter((one) => one !== name) : [...hidden, name];
    localStorage.setItem(HIDDEN_KEY, after.join(","));
    choose(after);
  };
  return (
    <details className="more">
      <summary>Columns</summary>
      {(Object.entries(COLUMNS) as [ColumnName, string][]).map(([name, word]) => (
        <label key={name}>
          <input type="checkbox" checked={!hidden.includes(name)} onChange={() => toggle(name)} /> {word}
        </label>
      ))}
    </details>
  );
}

/** Each says first how many it would meet. */
function Acts({ of, ask }: { of: string; ask: (action: BulkAction) => void }) {
  return (
    <span className="act">
      <button type="button" className="btn sm bad" onClick={() => ask("cancel")}>
        Cancel{of}…
      </button>
      <button type="button" className="btn sm" onClick={() => ask("signal")}>
        Signal{of}…
      </button>
      <button type="button" className="btn sm" onClick={() => ask("skip")}>
        Repair{of}…
      </button>
      <button type="button" className="btn sm" onClick={() => ask("retry")}>
        <Icon name="retry" />
        Retry{of}…
      </button>
    </span>
  );
}

function bulkFilterOf({ definitionVersion, instanceKey: _, delayed: __, blocked: ___, bulkId: ____, open: _____, currentStepId: ______, ...filter }: InstanceFilter): BulkFilter {
  return { ...filter, ...(definitionVersion && { definitionVersion: Number(definitionVersion) }) };
}

function Filters({ params, change }: { params: URLSearchParams; change: ReturnType<typeof useAddress>[1] }) {
  const apply = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const text = (name: string) => String(form.get(name) ?? "").trim();
    const attribute = text("attribute").match(/^([^=\s]+)\s*=\s*(.+)$/);
    change({
      ...Object.fromEntries(attributesOf(params).map(([name]) => [name, undefined])),
      ...(attribute && { [ATTRIBUTE + attribute[1]!]: attribute[2]! }),
      ...Object.fromEntries(ALL_FIELDS.map(([name]) => [name, text(name)])),
    });
  };
  const chosen = KINDS.find(([name]) => params.get(name) === "true")?.[0] ?? params.get("status") ?? undefined;
  return (
    <div className="flt">
      <fieldset>
        <legend className="sr">Status</legend>
        {[undefined, ...STATUSES].map((status) => (
          <button key={status ?? "all"} type="button" className={`chip ${chosen === status ? "on" : ""}`} aria-pressed={chosen === status} onClick={() => change({ status, delayed: undefined, blocked: undefined, open: undefined })}>
            {status ? WORDS[status] : "All"}
          </button>
        ))}
        {KINDS.map(([name, word]) => (
          <button key={name} type="button" className={`chip ${chosen === name ? "on" : ""}`} aria-pressed={chosen === name} onClick={() => change({ status: undefined, delayed: undefined, blocked: undefined, open: undefined, [name]: "true" })}>
            {word}
          </button>
        ))}
      </fieldset>
      {/* A new key when the address changes from outside: the fields show what is applied. */}
      <form key={[...ALL_FIELDS.map(([name]) => params.get(name)), ...attributesOf(params)].join("\n")} onSubmit={apply} className="fields">
        {FIELDS.map(([name, label]) => (
          <input key={name} name={name} aria-label={label} placeholder={label} defaultValue={params.get(name) ?? ""} className="in" maxLength={512} />
        ))}
        <details className="more" open={attributesOf(params).length > 0 || MORE_FIELDS.some(([name]) => params.has(name))}>
          <summary>More filters</summary>
          {MORE_FIELDS.map(([name, label]) => (
            <input key={name} name={name} aria-label={label} placeholder={label} defaultValue={params.get(name) ?? ""} className="in" maxLength={1000} />
          ))}
          <input
            name="attribute"
            aria-label="Variable that is a search attribute"
            placeholder="Variable, customer=4711"
            title="One that the definition has as a search attribute; of numbers and times amount.from=100 is at least, amount.to=200 below"
            pattern="\s*[^=\s]+\s*=.*\S.*"
            defaultValue={attributesOf(params).map(([name, value]) => `${name.slice(ATTRIBUTE.length)}=${value}`)[0] ?? ""}
            className="in"
            maxLength={1000}
          />
        </details>
        <button type="submit" className="btn">
          Apply
        </button>
      </form>
    </div>
  );
}

/** How many match: counted by an index, to 10,000. */
function useCount(filter: InstanceFilter) {
  return useQuery({ queryKey: ["instances", "count", filter], queryFn: ({ signal }) => engine.countInstances(filter, signal), staleTime: 10_000, retry: false });
}

function Matching({ filter }: { filter: InstanceFilter }) {
  const { data } = useCount(filter);
  return <span>{data ? `${data.exact ? "" : "> "}${data.count.toLocaleString("en")} ${data.exact && data.count === 1 ? "matches" : "match"}` : "\u00a0"}</span>;
}

function Count({ filter, rows }: { filter: InstanceFilter; rows: number }) {
  const counted = useCount(filter);
  if (!counted.data) return null;
  const { count, exact } = counted.data;
  if (count < rows) return null; // some that are shown match no more
  return (
    <span title={exact ? "Counted when this list was opened" : "Not counted any further"}>
      {` of ${exact ? "" : "> "}${count.toLocaleString("en")}`}
    </span>
  );
}

/** Ids are numbers in hexadecimal, which grow. */
function isNewer(id: string, than: string): boolean {
  return id.length === than.length ? id > than : id.length > than.length;
}

/** Says that there are newer ones; they come in on request only. */
function Newer({ filter, newest, show }: { filter: InstanceFilter; newest: string; show: () => void }) {
  const queries = useQueryClient();
  const filtered = Object.keys(filter).length > 0;
  const [told, setTold] = useState({ than: newest, count: 0 });
  const first = useQuery({
    queryKey: ["instances", "newer", filter],
    queryFn: ({ signal }) => engine.instances(filter, "", NEWER_READ, signal),
    refetchInterval: filter.status === undefined ? false : NEWER_MS, // instances come into a status at any age
    enabled: filtered,
  });
  useWatch([], newest, ({ newer }) => {
    if (newer === 0) return;
    setTold({ than: newest, count: newer });
    if (filtered) void queries.invalidateQueries({ queryKey: ["instances", "newer", filter] });
  });
  // The newest one shown may match no more.
  const since = (first.data?.items ?? []).filter(({ id }) => isNewer(id, newest)).length;
  const found = filtered ? (since === NEWER_READ ? NEWER_MAX : since) : told.than === newest ? told.count : 0;
  if (found === 0) return null;
  return (
    <button type="button" className="newer" onClick={show}>
      {found >= NEWER_MAX ? "Many" : found} newer {found === 1 ? "instance matches" : "instances match"}. Show them
    </button>
  );
}

const PLACES: Record<string, string> = { READY: "in the queue", LOCKED: "at a worker", DISPATCHED: "at a worker", BACKOFF: "waiting to retry", PARKED: "waits" };

/** Where an instance stands: `pay, in the queue`. */
function reasonOf(row: ListedInstance): string | undefined {
  return row.blockedReason ?? row.failureReason;
}

function placesOf(row: ListedInstance): string {
  return row.where.map((place) => `${place.stepId}${place.state === "FAILED" ? "" : `, ${PLACES[place.state] ?? place.state.toLowerCase()}`}`).join(" · ");
}

interface RowsProps {
  rows: ListedInstance[];
  /** None: all are. */
  ticked: ReadonlySet<string> | undefined;
  tick: (ids: ReadonlySet<string>) => void;
  hidden: readonly ColumnName[];
  order: Order;
  sort: (order: Order) => void;
}

interface SortedHeadProps {
  word: string;
  /** Now, where it is by this column. */
  direction: "ascending" | "descending" | undefined;
  press: () => void;
  look?: string;
}

function SortedHead({ word, direction, press, look }: SortedHeadProps) {
  return (
    <th className={look} aria-sort={direction ?? "none"}>
      <button type="button" className="link" title={`Sort by ${word.toLowerCase()}`} onClick={press}>
        {word}
        {direction && <span aria-hidden="true">{direction === "ascending" ? " ↑" : " ↓"}</span>}
      </button>
    </th>
  );
}

/** A click beside what is a control of its own, with which no text was selected. Keys use the row's link. */
function meansRow({ target }: MouseEvent): boolean {
  return (target as Element).closest("a, button, td.c") === null && getSelection()?.isCollapsed !== false;
}

function Rows({ rows, ticked, tick, hidden, order, sort }: RowsProps) {
  const shows = (name: ColumnName) => !hidden.includes(name);
  const operates = useCan("operate");
  const toggle = (id: string) => {
    const after = new Set(ticked ?? []);
    if (!after.delete(id)) after.add(id);
    tick(after);
  };
  const everything = ticked === undefined || rows.every((row) => ticked.has(row.id));
  const [, go] = useLocation();
  const open = (row: ListedInstance) => go(`/instances/${encodeURIComponent(row.id)}`);
  const [at, setAt] = useState(-1);
  const body = useRef<HTMLTableSectionElement>(null);
  useShortcuts(
    useMemo(
      () => ({
        j: () => setAt((before) => Math.min(before + 1, rows.length - 1)),
        k: () => setAt((before) => Math.max(before - 1, 0)),
        x: () => {
          const row = rows[at];
          if (row && operates) toggle(row.id);
        },
        Enter: () => {
          const row = rows[at];
          if (row) open(row);
        },
      }),
      [rows, at, go, ticked, operates],
    ),
  );
  useEffect(() => {
    body.current?.rows[at]?.scrollIntoView({ block: "nearest" }); // gives a promise in newer browsers
  }, [at]);
  return (
    <table className="wide">
      <thead>
        <tr>
          {operates && (
            <th className="c">
              <input type="checkbox" aria-label="All rows shown" checked={everything} onChange={() => tick(new Set(everything ? [] : rows.map((row) => row.id)))} />
            </th>
          )}
          <th>Status</th>
          <th>Instance</th>
          {shows("businessKey") && <SortedHead word={COLUMNS.businessKey} direction={order === "businessKey" ? "ascending" : undefined} press={() => sort(order === "businessKey" ? "newest" : "businessKey")} />}
          {shows("definition") && <th>Definition</th>}
          {shows("where") && <th>Why, or where</th>}
          {shows("started") && (
            <SortedHead word={COLUMNS.started} look="r" direction={order === "newest" ? "descending" : order === "oldest" ? "ascending" : undefined} press={() => sort(order === "newest" ? "oldest" : "newest")} />
          )}
          {TIMES.filter(shows).map((name) => (
            <SortedHead key={name} word={COLUMNS[name]} look="r" direction={order === name ? "descending" : undefined} press={() => sort(order === name ? "newest" : name)} />
          ))}
        </tr>
      </thead>
      <tbody ref={body}>
        {rows.map((row, index) => (
          <tr key={row.id} className={index === at ? "opens on" : "opens"} onClick={(event) => meansRow(event) && open(row)}>
            {operates && (
              <td className="c">
                <input type="checkbox" aria-label={`Select ${row.id}`} checked={ticked === undefined || ticked.has(row.id)} onChange={() => toggle(row.id)} />
              </td>
            )}
            <td>
              <InstanceStatusBadge status={row.status} blocked={row.blocked} />
            </td>
            <td>
              <Link href={`/instances/${encodeURIComponent(row.id)}`}>
                <code>{row.id}</code>
              </Link>{" "}
              <CopyId id={row.id} />
            </td>
            {shows("businessKey") && <td className="el">{row.businessKey ?? <span className="mute">–</span>}</td>}
            {shows("definition") && (
            <td className="el">
              <Link href={`/definitions/${encodeURIComponent(row.definitionId)}?version=${row.definitionVersion}`}>{row.definitionId}</Link> <span className="mute">v{row.definitionVersion}</span>
            </td>
            )}
            {shows("where") && (
            <td className="el why-where" title={reasonOf(row) === undefined ? placesOf(row) : `${placesOf(row)}: ${reasonOf(row)}`}>
              {reasonOf(row) ?? placesOf(row)}
            </td>
            )}
            {shows("started") && (
            <td className="r mute">
              <Ago at={row.startedAt} />
            </td>
            )}
            {shows("changed") && <td className="r mute">{row.changedAt && <Ago at={row.changedAt} />}</td>}
            {shows("ended") && <td className="r mute">{row.completedAt && <Ago at={row.completedAt} />}</td>}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
