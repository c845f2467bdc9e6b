// A run of a durable workflow: its branches as a tree, with what each waits for, and its journal. Of an instance of
// a definition the tree is that of the instances that it called.
import { keepPreviousData, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useMemo, useState } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { type Branch, engine, type JournalRecord, newKey, type RunUpdate } from "../api/client";
import { Dialog } from "../parts/dialog";
import { later } from "../parts/later";
import { Empty, Problem, Skeleton } from "../parts/states";
import { Badge, type Look } from "../parts/status";
import { type Column, Listing } from "../parts/table";
import { bothZones, duration, useNow } from "../parts/time";
import { useCan } from "../session";
import { Force } from "./force";
import { endsOperation, ForkOrigin, RunAgain } from "./fork";
import { RECORDS } from "./records";

const Rejected = later(() => import("./rejected").then((it) => it.Rejected));
const StepThrough = later(() => import("./stepthrough").then((it) => it.StepThrough));
const REFRESH_MS = 1_000;
/** Of a tree that takes long to make. */
const REFRESH_LARGE_MS = 10_000;
const LARGE = 500;
const LOOKS: Record<string, Look> = { done: "ok", failed: "fail", stopped: "skip", running: "run", waiting: "wait", open: "run" };

/** `sends`: it is a run, which receives messages. */
export function RunTreeView({ id, open, sends = false, empty = "Nothing has run yet" }: { id: string; open: boolean; sends?: boolean; empty?: string }) {
  const tree = useQuery({ queryKey: ["tree", id, open], queryFn: ({ signal }) => engine.tree(id, signal), refetchInterval: (query) => (!open ? false : (query.state.data?.branches.length ?? 0) > LARGE ? REFRESH_LARGE_MS : REFRESH_MS) });
  if (tree.error) return <Problem error={tree.error} retry={() => tree.refetch()} />;
  if (!tree.data) return <Skeleton rows={4} />;
  const { branches, waitsFor, mail, view, rejected, rejectedCount } = tree.data;
  return (
    <div className="run">
      {tree.data.forkedFrom !== undefined && <ForkOrigin from={tree.data.forkedFrom} />}
      {waitsFor !== undefined && open && (
        <p className="why wait" role="status">
          <b>Waits for {waitsFor}</b>
        </p>
      )}
      {sends && open && <SendMessage id={id} waitsFor={waitsFor} />}
      {sends && open && <CallUpdate id={id} names={updatesOf(branches)} />}
      {open && rejected !== undefined && <Rejected id={id} messages={rejected} count={rejectedCount ?? 0} />}
      {branches.length === 0 ? <Empty title={empty} /> : <Branches branches={branches} />}
      {(mail ?? 0) > 0 && <p className="mute note">{`${mail} messages came.`}</p>}
      {view !== undefined && (
        <section className="attempts" aria-label="Custom status">
          <h2>Custom status</h2>
          <pre className="json">{JSON.stringify(view, null, 2)}</pre>
        </section>
      )}
    </div>
  );
}

/** One key per form: pressing the button twice sends one message. */
function SendMessage({ id, waitsFor }: { id: string; waitsFor: string | undefined }) {
  const operates = useCan("operate");
  const queries = useQueryClient();
  const [key, setKey] = useState<string>();
  if (!operates) return null;
  const act = async (form: FormData) => {
    const payload = String(form.get("payload")).trim() || "null";
    JSON.parse(payload); // what is no JSON is told here
    await engine.sendMessage(id, String(form.get("name")).trim(), payload, key!, form.get("force") !== null);
    await queries.invalidateQueries({ queryKey: ["tree", id] });
  };
  return (
    <p className="note">
      <button type="button" className="btn sm" onClick={() => setKey(newKey())}>
        Send a message…
      </button>
      {key !== undefined && (
        <Dialog title="Send a message to this run" verb="Send" close={() => setKey(undefined)} act={act}>
          <p>{waitsFor === undefined ? "It is kept until the run receives it." : `The run waits for ${waitsFor}.`}</p>
          <div className="field">
            <label htmlFor="message-name">Name</label>
            <input id="message-name" name="name" className="in mono" maxLength={256} required />
          </div>
          <div className="field">
            <label htmlFor="message-payload">Payload, as JSON; empty: null</label>
            <textarea id="message-payload" name="payload" className="in mono" rows={6} spellCheck={false} />
          </div>
          <Force />
        </Dialog>
      )}
    </p>
  );
}

/** The names of the updates that a run serves. */
export function updatesOf(branches: Branch[]): string[] {
  return branches.flatMap((branch) => [...(branch.kind === "update" && branch.name !== undefined ? [branch.name] : []), ...updatesOf(branch.children ?? [])]);
}

/** What became of a call, in a sentence. */
export function answerText(name: string, { status, value, reason }: RunUpdate): string {
  if (status === "DONE") return `${name} answered ${JSON.stringify(value ?? null)}.`;
  if (status === "PENDING") return `${name} has not answered yet. The call is kept.`;
  return `${name}: ${status === "REFUSED" ? "the call was refused" : status === "FAILED" ? "the handler failed" : "the run ended without an answer"}: ${reason}`;
}

/** One key per form: pressing the button twice makes one call. */
function CallUpdate({ id, names }: { id: string; names: string[] }) {
  const operates = useCan("operate");
  const queries = useQueryClient();
  const [key, setKey] = useState<string>();
  const [answer, setAnswer] = useState<string>();
  if (!operates || names.length === 0) return null;
  const act = async (form: FormData) => {
    const given = String(form.get("arguments")).trim() || "[]";
    JSON.parse(given); // what is no JSON is told here
    const name = String(form.get("name"));
    setAnswer(answerText(name, await engine.askRun(id, name, given, key!)));
    await queries.invalidateQueries({ queryKey: ["tree", id] });
  };
  return (
    <p className="note">
      <button type="button" className="btn sm" onClick={() => setKey(newKey())}>
        Call an update…
      </button>
      {answer !== undefined && <span role="status"> {answer}</span>}
      {key !== undefined && (
        <Dialog title="Call an update of this run" verb="Call" close={() => setKey(undefined)} act={act}>
          <p>The run checks the call and answers it.</p>
          <div className="field">
            <label htmlFor="update-name">Name</label>
            <select id="update-name" name="name" className="in mono">
              {names.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </div>
          <div className="field">
            <label htmlFor="update-arguments">Arguments, as a JSON list or object; empty: none</label>
            <textarea id="update-arguments" name="arguments" className="in mono" rows={4} spellCheck={false} />
          </div>
        </Dialog>
      )}
    </p>
  );
}

const SHOWN = 100;

/** What is open, and what ended last; of a run of ten thousand steps that is what one can look at. */
export function latestOf(branches: Branch[], most: number): Branch[] {
  return branches.filter((branch, at) => at >= branches.length - most || branch.endedAt === undefined);
}

function Branches({ branches }: { branches: Branch[] }) {
  const [all, setAll] = useState(false);
  const latest = all ? branches : latestOf(branches, SHOWN);
  return (
    <ul className="branches">
      {latest.length < branches.length && (
        <li>
          <button type="button" className="link" onClick={() => setAll(true)}>
            Show {(branches.length - latest.length).toLocaleString("en")} that ended before
          </button>
        </li>
      )}
      {latest.map((branch) => (
        <li key={branch.instanceId ?? branch.path}>
          <div className="branch" title={branch.where}>
            <Badge look={LOOKS[branch.status] ?? "skip"}>{branch.status}</Badge>
            <b>{branch.instanceId === undefined ? (branch.name ?? branch.kind ?? branch.path) : <Link href={`/instances/${encodeURIComponent(branch.instanceId)}`}>{branch.name}</Link>}</b>
            {branch.kind !== undefined && branch.name !== undefined && <span className="mute">{branch.kind}</span>}
            {(branch.attempt ?? 1) > 1 && <span className="tag">attempt {branch.attempt}</span>}
            {branch.endedAt === undefined ? <Left branch={branch} /> : branch.startedAt !== undefined && <span className="mute">took {duration(Date.parse(branch.endedAt) - Date.parse(branch.startedAt))}</span>}
            {branch.where !== undefined && <code className="mute">{branch.where}</code>}
          </div>
          {branch.children !== undefined && branch.children.length > 0 && <Branches branches={branch.children} />}
        </li>
      ))}
    </ul>
  );
}

/** Of one that is open: until when it waits, or since when it runs. */
function Left({ branch }: { branch: Branch }) {
  const now = useNow();
  if (branch.dueAt === undefined) return branch.startedAt === undefined ? null : <span className="mute">for {duration(now - Date.parse(branch.startedAt))}</span>;
  const left = Date.parse(branch.dueAt) - now;
  return (
    <span className="mute" title={bothZones(branch.dueAt)}>
      {left > 0 ? `due in ${duration(left)}` : "due"}
    </span>
  );
}

/** What follows from the first record: it says of each whether it was replayed, or of none. */
function tellReplayed(first: JournalRecord | undefined, open: boolean): string {
  if (first === undefined) return "";
  if (first.replayed === undefined) return " Nobody has the run now: whoever takes it replays all of them.";
  return ` Those that are marked were there when the executor that ${open ? "has" : "ended"} the run took it: it replayed them, and called no step again.`;
}

interface JournalProps {
  id: string;
  mark: string | undefined;
  open: boolean;
}

/** Its records as a list, or one after the other: `at` of the address says which. */
export function Journal(props: JournalProps) {
  const [params, change] = useAddress();
  const at = params.get("at");
  const step = useCallback((pos: string | undefined) => change({ at: pos }, true), [change]);
  if (at) return <StepThrough {...props} at={at} step={step} />;
  return <Records {...props} step={step} />;
}

function Records({ id, mark, open, step }: JournalProps & { step: (pos: string) => void }) {
  const pages = useInfiniteQuery({
    queryKey: ["journal", id, mark],
    placeholderData: keepPreviousData,
    queryFn: ({ pageParam, signal }) => engine.journal(id, pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
  });
  const operates = useCan("operate");
  const columns = useMemo<(Column<JournalRecord> | false)[]>(
    () => [
      ...RECORDS,
      operates && {
        head: "Run again",
        cell: (record) =>
          endsOperation(record) && (
            <RunAgain id={id} path={record.path!}>
              From here…
            </RunAgain>
          ),
      },
    ],
    [id, operates],
  );
  return (
    <>
      <p className="mute note">
        All that came into the code from outside, in order: what is read again when the run goes on elsewhere.
        {tellReplayed(pages.data?.pages[0]?.items[0], open)}
      </p>
      <p className="note">
        <button type="button" className="btn sm" onClick={() => step("first")}>
          Step through
        </button>
      </p>
      {operates && (
        <p className="note">
          <RunAgain id={id} path="start">
            Run again from the start…
          </RunAgain>{" "}
          <RunAgain id={id} path="end">
            Run again from the end of the journal…
          </RunAgain>
        </p>
      )}
      <div className="journal">
        <Listing pages={pages} columns={columns} keyOf={(record) => record.pos} empty={<Empty title="Nothing was recorded yet" />} />
      </div>
    </>
  );
}
