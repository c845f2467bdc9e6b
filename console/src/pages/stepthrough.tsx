// A run's journal, record by record, with the keys of a debugger: what came, and how its branches stood then.
import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { Fragment, useEffect, useMemo, useRef, useState } from "react";
import { engine, type JournalRecord } from "../api/client";
import { useShortcuts } from "../keyboard";
import { CopyButton } from "../parts/copy";
import { Empty, Problem, Skeleton } from "../parts/states";
import { type Column, Table } from "../parts/table";
import { At, duration } from "../parts/time";
import { RECORDS } from "./records";
import { type Ahead, type BranchThen, branchesThen, ofOperation, openOf, type Place, Walk } from "./walk";

const PAGE_RECORDS = 1_000;
const TREE_FRESH_MS = 1_000;
const ADDRESS_AFTER_MS = 300;
/** Of the records before and after, as a debugger lists lines. */
const LISTED = 3;
const VALUES_SHOWN = 20;
const VALUE_MAX_CHARS = 200;
const PAYLOAD_MAX_CHARS = 20_000;
const WHAT: Record<string, string> = {
  done: "The step gave a value",
  failed: "The step failed",
  retry: "An attempt of the step failed",
  stopped: "The operation was cancelled, and has ended",
  abandoned: "The operation was cancelled, and nobody waits for its end",
  child: "The child ended",
  supplied: "An operator gave the outcome",
  clock: "Time had passed: a sleep or a deadline was due",
  message: "A message came",
  cancel: "Somebody asked for a cancel",
  begun: "The step began",
  view: "What the run showed last",
  error: "The function raised, or did not await a call",
  dropped: "An operator dropped or corrected a message",
  asked: "Somebody called an update",
  accepted: "The handler of the update began",
  answered: "The handler of the update answered",
};

interface Props {
  id: string;
  mark: string | undefined;
  open: boolean;
  /** The position of a record, `first` or `last`. */
  at: string;
  /** None: back to the list. */
  step: (pos: string | undefined) => void;
}

export function StepThrough({ id, mark, open, at, step }: Props) {
  const walk = useMemo(() => new Walk((cursor) => engine.journal(id, cursor, undefined, PAGE_RECORDS)), [id]);
  const [place, stand] = useState<Place | null>();
  const [known, tell] = useState<number>();
  const [error, fail] = useState<Error>();
  const standing = useRef<Place>(undefined);
  const moves = useRef(Promise.resolve());
  /** Of the way that goes on: whether it is broken off. */
  const under = useRef({ stopped: false });
  const renewed = useRef<string>(undefined);
  const markRead = useRef(mark);
  const queries = useQueryClient();
  /** One after the other: no key is lost. A long way ends when the next begins. */
  const move = (way: (from: Place | undefined, told: (records: number) => boolean) => Promise<Place | undefined>) => {
    under.current.stopped = true;
    const mine = { stopped: false };
    under.current = mine;
    moves.current = moves.current.then(async () => {
      fail(undefined);
      try {
        const found = await way(standing.current, (records) => {
          if (!mine.stopped) tell(records);
          return !mine.stopped;
        });
        standing.current = found;
        stand(found ?? null);
      } catch (reason) {
        fail(reason as Error);
      } finally {
        tell(undefined);
      }
    });
  };
  const begin = () => move((_, told) => (at === "first" ? walk.first() : walk.seek(at === "last" ? undefined : at, told)));
  useEffect(() => {
    begin();
    return () => {
      under.current.stopped = true;
    };
    // biome-ignore lint: the address follows from here on
  }, [walk]);
  const found = useQuery({
    queryKey: ["step through", id, place, mark],
    enabled: !!place,
    placeholderData: keepPreviousData,
    gcTime: 0,
    queryFn: async () => {
      if (markRead.current !== mark) walk.renew();
      markRead.current = mark;
      const number = walk.before(place!) + 1;
      const found = await walk.around(place!);
      if (!found.whole || !open) return { ...found, number, ahead: [] };
      const tree = await queries.fetchQuery({ queryKey: ["tree", id, open], queryFn: ({ signal }) => engine.tree(id, signal), staleTime: TREE_FRESH_MS });
      const ahead = openOf(tree.branches);
      // What is open was read before the records: what has ended in between has its record.
      if (renewed.current !== JSON.stringify(ahead)) walk.renew();
      renewed.current = JSON.stringify(ahead);
      return { ...(await walk.around(place!)), number, ahead };
    },
  });
  const shown = place ? found.data : undefined;
  const pos = shown?.record.pos;
  useEffect(() => {
    if (pos === undefined || found.isPlaceholderData) return;
    const timer = setTimeout(() => step(pos), ADDRESS_AFTER_MS); // browsers refuse many changes of the address
    return () => clearTimeout(timer);
  }, [pos, found.isPlaceholderData, step]);
  const ways = useMemo(
    () => ({
      first: () => move(() => walk.first()),
      previous: () => move((from) => (from ? walk.previous(from) : walk.first())),
      next: () => move((from) => (from ? walk.next(from) : walk.first())),
      last: () => move((_, told) => walk.seek(undefined, told)),
    }),
    // biome-ignore lint: what it uses is kept by references
    [walk],
  );
  useShortcuts(useMemo(() => ({ n: ways.next, F10: ways.next, p: ways.previous, "Shift+F10": ways.previous, "<": ways.first, ">": ways.last }), [ways]));
  return (
    <section aria-label="Step through">
      <p className="note">
        {(
          [
            ["First", "<", ways.first],
            ["Previous", "p or Shift F10", ways.previous],
            ["Next", "n or F10", ways.next],
            ["Last", ">", ways.last],
          ] as const
        ).map(([word, key, act]) => (
          <Fragment key={word}>
            <button type="button" className="btn sm" title={`Key ${key}`} onClick={act}>
              {word}
            </button>{" "}
          </Fragment>
        ))}
        <button type="button" className="btn sm" onClick={() => step(undefined)}>
          Show as a list
        </button>
      </p>
      {known !== undefined && (
        <p className="note" role="status">
          {known.toLocaleString("en")} records read…{" "}
          <button type="button" className="link" onClick={() => (under.current.stopped = true)}>
            Stop here
          </button>
        </p>
      )}
      {(error ?? found.error) ? (
        <Problem error={(error ?? found.error)!} retry={() => (place ? void found.refetch() : begin())} />
      ) : place === null ? (
        <Empty title="Nothing was recorded yet" />
      ) : shown ? (
        <Then id={id} open={open} {...shown} />
      ) : (
        <Skeleton rows={4} />
      )}
    </section>
  );
}

interface ThenProps {
  id: string;
  open: boolean;
  number: number;
  before: JournalRecord[];
  record: JournalRecord;
  after: JournalRecord[];
  /** All records that follow are there. */
  whole: boolean;
  ahead: Ahead[];
}

function Then({ id, open, number, before, record, after, whole, ahead }: ThenProps) {
  const branches = useMemo(() => branchesThen(before, record, after, whole ? ahead : []), [before, record, after, whole, ahead]);
  const values = useMemo(() => before.filter((one) => ofOperation(one) && one.payload !== undefined).slice(-VALUES_SHOWN).reverse(), [before]);
  const at = Date.parse(record.at);
  const over = whole && after.length === 0 && !open;
  const columns = useMemo<Column<BranchThen>[]>(
    () => [
      { head: "Branch", cell: (branch) => <code>{branch.path || "/"}</code> },
      { head: "Has done", look: "el", cell: ({ last }) => (last ? `${last.name ?? last.kind} (${last.path})${last.kind === "done" ? "" : `: ${last.kind}`}` : "–") },
      { head: "Stands", cell: (branch) => <Stands branch={branch} at={at} over={over} whole={whole} /> },
    ],
    [at, over, whole],
  );
  return (
    <>
      <p className="why" role="status">
        <span>
          <b>
            Record {number.toLocaleString("en")}
            {whole && ` of ${(number + after.length).toLocaleString("en")}`}
          </b>
          {": "}
          {WHAT[record.kind] ?? record.kind}
          {record.name !== undefined && (
            <>
              {" – "}
              <b>{record.name}</b>
            </>
          )}
          {record.path && (
            <>
              {" "}
              <code>{record.path}</code>
            </>
          )}
          {", "}
          <At at={record.at} />
        </span>
      </p>
      {record.payload !== undefined && <pre className="json">{cut(JSON.stringify(record.payload, null, 2), PAYLOAD_MAX_CHARS)}</pre>}
      {ofOperation(record) && (
        <p className="note mute">
          With your code you see the line and its variables before this operation:{" "}
          <CopyButton text={() => `penstock debug ${id} MODULE --until '${record.path}'`}>Copy the command for penstock debug</CopyButton>
        </p>
      )}
      <section className="attempts" aria-label="Branches then">
        <h2>Branches then</h2>
        <Table plain columns={columns} rows={branches} keyOf={(branch) => branch.path} />
        <p className="note mute">As the journal tells it: of a nursery's branch from its first step to its last record, and lines of what is open now.</p>
      </section>
      <section className="attempts" aria-label="Records around it">
        <h2>Records around it</h2>
        <div className="journal">
          <Table columns={RECORDS} rows={[...before.slice(-LISTED), record, ...after.slice(0, LISTED)]} keyOf={(one) => one.pos} isCurrent={(one) => one === record} />
        </div>
      </section>
      <section className="attempts" aria-label="Values before">
        <h2>Values before</h2>
        {values.length === 0 ? (
          <p className="note mute">None yet.</p>
        ) : (
          <div className="journal">
            <Table plain columns={VALUES} rows={values} keyOf={(one) => one.pos} />
          </div>
        )}
      </section>
    </>
  );
}

const VALUES: Column<JournalRecord>[] = [
  { head: "Path", cell: (one) => <code>{one.path}</code> },
  { head: "Name", cell: (one) => one.name ?? one.kind },
  { head: "Value", look: "el", title: (one) => valueOf(one), cell: (one) => <code>{valueOf(one)}</code> },
];

function valueOf(record: JournalRecord): string {
  return cut(JSON.stringify(record.payload), VALUE_MAX_CHARS);
}

function cut(text: string, chars: number): string {
  return text.length > chars ? `${text.slice(0, chars)}…` : text;
}

function Stands({ branch: { path, ahead, within }, at, over, whole }: { branch: BranchThen; at: number; over: boolean; whole: boolean }) {
  if (within !== undefined && (ahead === undefined || ahead.until !== undefined || ahead.path === within))
    return (
      <>
        in <code>{within}</code>, with its branches
      </>
    );
  if (ahead === undefined) return over && path === "" ? "has ended" : whole ? "no record follows, and nothing is open" : "what follows was not read";
  const what = (
    <>
      <b>{ahead.name ?? ahead.kind}</b> <code>{ahead.path}</code>
    </>
  );
  const began = ahead.since !== undefined && ahead.since <= at;
  if (ahead.until === undefined)
    return (
      <>
        {ahead.kind === "step" ? (began ? "runs " : "went on with ") : `waits for ${ahead.kind} `}
        {what}
        {ahead.where !== undefined && (
          <>
            {", at "}
            <code>{ahead.where}</code>
          </>
        )}
        {", which is open now"}
      </>
    );
  const later = duration(ahead.until - at);
  if (began)
    return (
      <>
        runs {what} for {duration(at - ahead.since!)}; its record came {later} later
      </>
    );
  return (
    <>
      before {what}, whose record came {later} later
    </>
  );
}
