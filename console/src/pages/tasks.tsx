// The inbox: what waits for a person, one task open at a time; after completion the next one that nobody else has is.
import { keepPreviousData, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import { useAddress } from "../address";
import { engine, type UserTask } from "../api/client";
import { useShortcuts } from "../keyboard";
import { Dialog } from "../parts/dialog";
import { More } from "../parts/list";
import { Empty, Problem, Skeleton } from "../parts/states";
import { Ago, At, duration, useNow } from "../parts/time";
import { useCan, useMe } from "../session";
import { askForEnd, type End, isTheirs, NameField, nameIn, nameOf, Theirs, taskOf, useClerk, wordsOf } from "./clerk";
import { begunOf, type Held, keepBegun, openOf } from "./inbox";
import { Task } from "./task";

const REFRESH_MS = 2_000;
const WHOSE = { all: "All", mine: "Mine", nobody: "Unassigned" } as const;
type Whose = keyof typeof WHOSE;

const NARROW = matchMedia("(max-width: 900px)"); // as in console.css: the list, or one task

function useNarrow(): boolean {
  return useSyncExternalStore(
    (changed) => {
      NARROW.addEventListener("change", changed);
      return () => NARROW.removeEventListener("change", changed);
    },
    () => NARROW.matches,
  );
}

export function TasksPage() {
  const [params, change] = useAddress();
  const clerk = useClerk();
  const { name, nameless, remember } = clerk;
  const who = useMe().data?.name ?? "";
  const narrow = useNarrow();
  const may = useCan("tasks");
  const queries = useQueryClient();
  const jobType = params.get("jobType") ?? "";
  const whose = (params.get("whose") ?? "all") as Whose;
  const unasked = whose === "mine" && name === "";
  const pages = useInfiniteQuery({
    queryKey: ["tasks", jobType, whose, whose === "mine" ? name : ""],
    queryFn: ({ pageParam, signal }) => engine.tasks({ jobType, ...(whose === "mine" && { assignee: name }), ...(whose === "nobody" && { unclaimed: true }) }, pageParam, signal),
    enabled: !unasked,
    placeholderData: keepPreviousData,
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
    refetchInterval: REFRESH_MS,
  });
  const [done, setDone] = useState<UserTask>();
  const rows = useMemo(() => (unasked ? [] : (pages.data?.pages.flatMap((page) => page.items) ?? []).filter((task) => task.executionId !== done?.executionId)), [pages.data, done, unasked]);
  const free = (task: UserTask) => task.assignee === undefined || task.assignee === name;
  const asked = params.get("task") ?? "";
  const list = `${whose} ${jobType}`;
  const settled = unasked || (pages.isSuccess && !pages.isPlaceholderData);
  const [held, hold] = useState<Held>();
  const loose = held !== undefined && held.list !== list && !begunOf(who, held.task);
  const look = { rows, settled, asked, held, loose, first: rows.find(free), read: undefined };
  const elsewhere = narrow && asked === ""; // the list alone is there
  const missing = openOf(look).missing && !elsewhere;
  const read = useQuery({ ...taskOf(asked || held?.task.executionId || ""), enabled: missing });
  // One that has ended meanwhile is shown as it was.
  const found = openOf({ ...look, read: missing ? read.data?.task : undefined }).open;
  const open = elsewhere ? undefined : found;
  const end = !elsewhere && (missing || read.data?.refused) ? read.data?.end : undefined;
  if (open && settled && (open !== held?.task || (loose && held.list !== list))) hold({ task: open, list });
  if (!open && !missing && settled && loose && asked === "") hold(undefined);
  // The answer to a call about one may come when another is open, or another page.
  const seen = useRef("");
  seen.current = open?.executionId ?? "";
  useEffect(() => () => void (seen.current = ""), []);
  const isBefore = (task: UserTask | undefined) => task !== undefined && seen.current === task.executionId;
  useRowAfter(narrow, asked);
  const [asking, ask] = useState<Asking>();
  const [giving, give] = useState<UserTask>();
  const [refused, refuse] = useState<string>();
  const [said, say] = useState("");
  const pick = (task: string | undefined) => {
    hold(undefined);
    refuse(undefined);
    say("");
    change({ task });
  };
  // What was typed stays: it is another list, not another task.
  const filter = (changes: Record<string, string | undefined>, replace = false) => {
    refuse(undefined);
    say("");
    change({ ...changes, task: undefined }, replace);
  };
  const step = (by: number) => {
    const next = rows[rows.findIndex((task) => task.executionId === open?.executionId) + by];
    if (next) pick(next.executionId);
  };
  const refresh = () => queries.invalidateQueries({ queryKey: ["tasks"] });
  const told = async (acted: Promise<unknown>) => {
    refuse(undefined);
    await acted.catch((error: Error) => refuse(error.message));
    await refresh();
  };
  /** As the engine has told it just now. */
  const learn = (task: UserTask) => {
    queries.setQueryData(taskOf(task.executionId).queryKey, { task });
    hold((one) => (one?.task.executionId === task.executionId ? { ...one, task } : one));
  };
  const claim = async (by: string | undefined) => {
    if (open) learn(await engine.claimTask(open, by));
  };
  const claimFirst = async (by: string) => {
    await claim(by);
    remember(by);
    await refresh();
  };
  const claimOrAsk = () => (nameless && name === "" ? ask({ verb: "Claim", act: claimFirst }) : told(claim(nameless ? name : undefined)));
  const release = async (task: UserTask) => learn(await engine.releaseTask(task));
  const releaseOrAsk = () => open && (isTheirs(open, clerk) ? give(open) : void told(release(open)));
  useShortcuts(useMemo(() => ({ j: () => step(1), k: () => step(-1), ...(may && open && open.assignee === undefined ? { c: () => void claimOrAsk() } : {}) }), [rows, open, may, name, nameless]));
  const at = rows.findIndex((task) => task.executionId === open?.executionId);
  const next = [...rows.slice(at + 1), ...rows.slice(0, Math.max(at, 0))].find((task) => free(task) && task.executionId !== open?.executionId);
  const leaving = next ? "Next task" : "Leave it";
  const goOn = () => {
    if (open) keepBegun(who, open, undefined);
    pick(next?.executionId);
  };
  const completed = async (by: string | undefined) => {
    if (nameless && by) remember(by);
    keepBegun(who, open!, undefined);
    setDone(open);
    const word = `Completed: ${nameOf(open!)}${open!.businessKey === undefined ? "" : ` (${open!.businessKey})`}.`;
    if (isBefore(open)) {
      goOn();
      say(`${word} ${next ? "The next one is open." : rows.length > 1 ? "Others have the rest." : "It was the last one here."}`);
      if (!next) document.getElementById("main")?.focus({ preventScroll: true });
    } else say(word);
    await refresh();
  };
  const over = async () => {
    await askForEnd(queries, open!);
    void refresh();
  };
  return (
    <div className="inbox">
      {(!narrow || elsewhere) && (
        <section className="tasks" aria-label="Open tasks" aria-busy={pages.isPlaceholderData}>
          <div className="head">
            <h1>Tasks</h1>
          </div>
          <div className="flt">
            <div className="seg" role="group" aria-label="Whose">
              {(Object.keys(WHOSE) as Whose[]).map((one) => (
                <button key={one} type="button" aria-pressed={whose === one} onClick={() => filter({ whose: one === "all" ? undefined : one })}>
                  {WHOSE[one]}
                </button>
              ))}
            </div>
            <ForWhom value={jobType} set={(value) => filter({ jobType: value }, true)} />
            {nameless && name !== "" && (
              <p className="mute">
                You are {name}.{" "}
                <button type="button" className="link" onClick={() => ask({ verb: "That is me", act: async (by) => remember(by) })}>
                  Somebody else?
                </button>
              </p>
            )}
          </div>
          {unasked && nameless ? (
            <Empty title="Which are yours?">
              <p>Those that were claimed with your name, which this engine does not know: it has no authentication.</p>
              <button type="button" className="btn" onClick={() => ask({ verb: "Show mine", act: async (by) => remember(by) })}>
                Say who you are
              </button>
            </Empty>
          ) : pages.error ? (
            <Problem error={pages.error} retry={() => pages.refetch()} />
          ) : pages.isPending ? (
            <Skeleton />
          ) : rows.length === 0 ? (
            <Nothing whose={whose} jobType={jobType} clear={() => filter({ whose: undefined, jobType: undefined })} />
          ) : (
            <ul>
              {rows.map((task) => (
                <li key={task.executionId}>
                  <button type="button" id={rowOf(task.executionId)} aria-current={task.executionId === open?.executionId ? "true" : undefined} onClick={() => pick(task.executionId)}>
                    <Row task={task} />
                  </button>
                </li>
              ))}
            </ul>
          )}
          <More pages={pages} word="Newer" />
          {rows.length > 0 && (
            <p className="hints mute" aria-hidden="true">
              <kbd>j</kbd> <kbd>k</kbd> move <kbd>c</kbd> claim <kbd>Ctrl ↵</kbd> complete
            </p>
          )}
        </section>
      )}
      <section className="task" aria-label="Task">
        <p className="said" role="status">
          {said}
        </p>
        {narrow && !elsewhere && (
          <button type="button" className="link" onClick={() => filter({})}>
            ‹ All tasks
          </button>
        )}
        {end ? (
          <Ended end={end} typed={open !== undefined && begunOf(who, open) !== undefined} leaving={leaving} />
        ) : (
          missing && open && (isTheirs(open, clerk) || open.assignee === undefined) && <p className="note mute">This task is open, but not among those listed here: the filter leaves it out, or it comes later.{begunOf(who, open) && " What you have typed is kept."}</p>
        )}
        {refused !== undefined && (
          <p className="refused" role="alert">
            {refused}
          </p>
        )}
        {open ? (
          <Task
            key={open.executionId}
            task={open}
            may={may}
            clerk={clerk}
            who={who}
            alone={narrow}
            asking={asking !== undefined || giving !== undefined}
            claim={claimOrAsk}
            release={releaseOrAsk}
            over={over}
            leave={end && { word: leaving, act: goOn }}
            completed={completed}
          />
        ) : end ? (
          <p>
            <button type="button" className="btn pri" onClick={goOn}>
              {leaving}
            </button>
          </p>
        ) : missing ? (
          read.error ? <Problem error={read.error} retry={() => read.refetch()} /> : <Skeleton />
        ) : (
          rows.length > 0 && !elsewhere && asked === "" && (
            <Empty title="Others have all that is listed">
              <p>Choose one to look at it.</p>
            </Empty>
          )
        )}
      </section>
      {asking && <WhoAreYou {...asking} close={() => ask(undefined)} />}
      {giving && <Theirs assignee={giving.assignee} verb="Give it back anyway" close={() => give(undefined)} act={() => release(giving).finally(refresh)} />}
    </div>
  );
}

function rowOf(executionId: string): string {
  return `task-${executionId}`;
}

/** Where the list and a task take turns: the task begins at its top, and whoever comes back is at its row. */
function useRowAfter(narrow: boolean, asked: string) {
  const last = useRef("");
  useEffect(() => {
    const main = document.getElementById("main");
    if (narrow && asked !== "") main?.scrollTo(0, 0);
    else if (narrow && last.current !== "") (document.getElementById(rowOf(last.current)) ?? main)?.focus();
    last.current = asked;
  }, [narrow, asked]);
}

function Ended({ end, typed, leaving }: { end: End; typed: boolean; leaving: string }) {
  return (
    <p className="refused" role="alert">
      {wordsOf(end)}
      {end.at !== undefined && (
        <>
          : <At at={end.at} />
        </>
      )}
      . {typed ? "What you have typed was not sent, and stays here until you leave it." : `Choose another one, or press “${leaving}” below.`}
    </p>
  );
}

interface Asking {
  verb: string;
  act: (name: string) => Promise<void>;
}

function WhoAreYou({ verb, act, close }: Asking & { close: () => void }) {
  return (
    <Dialog title="Who are you?" verb={verb} close={close} act={(form) => act(nameIn(form))}>
      <p>This engine knows no names: it has no authentication. Others see what you write, and this browser keeps it.</p>
      <NameField />
    </Dialog>
  );
}

const TYPED_MS = 400;

/** What is typed is looked for a moment later, with Enter at once, and an empty box looks for all. */
function ForWhom({ value, set }: { value: string; set: (value: string) => void }) {
  const [text, setText] = useState(value);
  const sent = useRef(value);
  const send = () => {
    if (text.trim() === sent.current) return;
    sent.current = text.trim();
    set(sent.current);
  };
  useEffect(() => {
    if (value === sent.current) return; // else it has changed elsewhere: Back, Clear the filter
    sent.current = value;
    setText(value);
  }, [value]);
  useEffect(() => {
    const timer = setTimeout(send, text.trim() === "" ? 0 : TYPED_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <form
      className="fields"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <input type="search" aria-label="For whom (job type)" placeholder="For whom" value={text} className="in mono" maxLength={256} onChange={(event) => setText(event.target.value)} />
    </form>
  );
}

/** No task is listed: nothing waits at all, or the filter leaves it out. */
function Nothing({ whose, jobType, clear }: { whose: Whose; jobType: string; clear: () => void }) {
  const all = useQuery({ queryKey: ["tasks", "count"], queryFn: ({ signal }) => engine.countTasks(signal), refetchInterval: REFRESH_MS });
  const filtered = whose !== "all" || jobType !== "";
  if (!filtered || all.data?.count === 0)
    return (
      <Empty title="Nothing waits for a person">
        <p>Open user tasks are listed here, the oldest first.</p>
      </Empty>
    );
  return (
    <Empty title={`No task is ${whose === "mine" ? "yours" : whose === "nobody" ? "free" : "open"}${jobType && ` for “${jobType}”`}`}>
      <p>Other tasks wait, which the filter leaves out{jobType === "" ? "" : ": a job type is written in full"}.</p>
      <button type="button" className="btn sm" onClick={clear}>
        Clear the filter
      </button>
    </Empty>
  );
}

function Row({ task }: { task: UserTask }) {
  return (
    <>
      <span className="line">
        <b>{nameOf(task)}</b>
        {task.nextTimer !== undefined && <Due at={task.nextTimer} />}
      </span>
      <span className="line">
        <span className="el">{task.summary ?? task.businessKey ?? task.jobType}</span>
        {task.assignee !== undefined && <span className="mute">{task.assignee}</span>}
      </span>
      <span className="line mute">
        <span className="el">
          {task.businessKey !== undefined && task.summary !== undefined ? `${task.businessKey} · ` : ""}
          {task.definitionId} v{task.version}
        </span>
        <span>
          open <Ago at={task.openedAt} />
        </span>
      </span>
    </>
  );
}

const SOON_MS = 3_600_000;

function Due({ at }: { at: string }) {
  const left = Date.parse(at) - useNow();
  return <span className={left < SOON_MS ? "due soon" : "due"}>{left > 0 ? `timer in ${duration(left)}` : "timer due"}</span>;
}
