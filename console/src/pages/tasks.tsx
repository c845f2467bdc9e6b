// The inbox: what waits for a person, one task open at a time; after completion the next one that nobody else has is.
import { keepPreviousData, type QueryClient, queryOptions, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { useAddress } from "../address";
import { type AuditRecord, engine, type UserTask } from "../api/client";
import { useShortcuts } from "../keyboard";
import { Dialog } from "../parts/dialog";
import { More } from "../parts/list";
import { Empty, Problem, Skeleton } from "../parts/states";
import { Ago, At, duration, useNow } from "../parts/time";
import { useCan, useMe } from "../session";
import { NameField, nameIn, nameOf, Task } from "./task";

const REFRESH_MS = 2_000;
const WHOSE = { all: "All", mine: "Mine", nobody: "Nobody's" } as const;
type Whose = keyof typeof WHOSE;

/** Without authentication nobody has a name: what somebody calls themselves is remembered by this browser. */
const NAME = "penstock.name";

function keptName(): string {
  try {
    return localStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

function keepName(name: string): void {
  try {
    localStorage.setItem(NAME, name);
  } catch {
    // a browser that keeps nothing: until the page is left
  }
}

function keyOf(task: UserTask): string {
  return `${task.instanceId}/${task.stepId}${task.item === undefined ? "" : `/${task.item}`}`;
}

export function TasksPage() {
  const [params, change] = useAddress();
  const me = useMe();
  const [called, call] = useState(keptName);
  const nameless = me.data !== undefined && me.data.name === undefined;
  const name = me.data?.name ?? called;
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
  const chosen = params.get("task") ?? "";
  // What somebody types in stays before them, also when it is open no more: what is typed is not for the next one.
  const [held, hold] = useState<UserTask>();
  const kept = held && (chosen === "" || chosen === keyOf(held)) ? held : undefined;
  if (held && !kept) hold(undefined); // they went Back: its form is gone
  const listed = rows.find((task) => (kept ? task.executionId === kept.executionId : keyOf(task) === chosen));
  // And what they look at, while it is listed: somebody else may have claimed it.
  const seen = useRef("");
  const open = listed ?? kept ?? rows.find((task) => task.executionId === seen.current) ?? rows.find(free);
  seen.current = open?.executionId ?? "";
  useEffect(() => () => void (seen.current = ""), []);
  // The answer to a call about one may come when another is open, or another page.
  const isBefore = (task: UserTask | undefined) => task !== undefined && seen.current === task.executionId;
  const [asking, ask] = useState<Asking>();
  const [refused, refuse] = useState<string>();
  const [said, say] = useState("");
  const pick = (changes: Record<string, string | undefined>) => {
    hold((one) => (one && keyOf(one) === changes.task ? one : undefined));
    refuse(undefined);
    say("");
    change(changes);
  };
  const keep = (task: UserTask) => {
    if (chosen !== "" && chosen !== keyOf(task)) change({ task: keyOf(task) }, true); // an address of one that is not listed
    hold(task);
  };
  // What was typed stays: it is another list, not another task.
  const filter = (changes: Record<string, string | undefined>, replace = false) => {
    refuse(undefined);
    say("");
    change({ ...changes, task: undefined }, replace);
  };
  const step = (by: number) => {
    const next = rows[rows.findIndex((task) => open && keyOf(task) === keyOf(open)) + by];
    if (next) pick({ task: keyOf(next) });
  };
  const refresh = () => queries.invalidateQueries({ queryKey: ["tasks"] });
  const told = async (acted: Promise<unknown>) => {
    refuse(undefined);
    await acted.catch((error: Error) => refuse(error.message));
    await refresh();
  };
  const remember = (by: string) => {
    keepName(by);
    call(by);
  };
  const claim = async (by: string | undefined) => {
    const claimed = open && (await engine.claimTask(open, by));
    if (claimed && isBefore(claimed)) keep(claimed);
  };
  const claimFirst = async (by: string) => {
    await claim(by);
    remember(by);
    await refresh();
  };
  const claimOrAsk = () => (nameless && name === "" ? ask({ verb: "Claim", act: claimFirst }) : told(claim(nameless ? name : undefined)));
  const release = async () => {
    if (!open) return;
    await engine.releaseTask(open);
    hold((one) => (one?.executionId === open.executionId ? undefined : one));
  };
  useShortcuts(useMemo(() => ({ j: () => step(1), k: () => step(-1), ...(may && open && open.assignee === undefined ? { c: () => void claimOrAsk() } : {}) }), [rows, open, may, name, nameless]));
  const at = rows.findIndex((task) => task.executionId === open?.executionId);
  const next = [...rows.slice(at + 1), ...rows.slice(0, Math.max(at, 0))].find((task) => free(task) && task.executionId !== open?.executionId);
  const goOn = () => pick({ task: next && keyOf(next) });
  const completed = async (by: string | undefined) => {
    if (nameless && by) remember(by);
    setDone(open);
    const word = `Completed: ${nameOf(open!)}${open!.businessKey === undefined ? "" : ` (${open!.businessKey})`}.`;
    if (isBefore(open)) {
      goOn();
      say(`${word} ${next ? "The next one is open." : rows.length > 1 ? "Others have the rest." : "It was the last one here."}`);
      if (!next) document.getElementById("main")?.focus({ preventScroll: true });
    } else say(word);
    await refresh();
  };
  const missing = kept !== undefined && !listed && pages.isSuccess && !pages.isPlaceholderData;
  const end = useQuery({ ...endOf(kept), enabled: missing });
  const over = async () => {
    if (isBefore(open)) keep(open!);
    await askForEnd(queries, open!);
    void refresh();
  };
  return (
    <div className="inbox">
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
              <li key={keyOf(task)}>
                <button type="button" aria-current={task === open ? "true" : undefined} onClick={() => pick({ task: keyOf(task) })}>
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
      <section className="task" aria-label="Task">
        <p className="said" role="status">
          {said}
        </p>
        {kept && end.data ? <Ended end={end.data} /> : missing && end.data === null && kept?.assignee !== name && <p className="note mute">This task is not among those listed here. What you have typed is kept.</p>}
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
            name={name}
            nameless={nameless}
            asking={asking !== undefined}
            claim={claimOrAsk}
            release={() => void told(release())}
            typed={() => keep(open)}
            over={over}
            leave={kept && end.data ? { word: next ? "Next task" : "Leave it", act: goOn } : undefined}
            completed={completed}
          />
        ) : (
          rows.length > 0 && (
            <Empty title="Others have all that is listed">
              <p>Choose one to look at it.</p>
            </Empty>
          )
        )}
      </section>
      {asking && <WhoAreYou {...asking} close={() => ask(undefined)} />}
    </div>
  );
}

/** How an execution ended; null: it has not, as far as the audit trail was read. */
type End = Pick<AuditRecord, "kind" | "at" | "actor"> | null;

const AUDIT_MAX_PAGES = 5;

function keyOfEnd(task: UserTask | undefined): readonly unknown[] {
  return ["task end", task?.executionId];
}

function endOf(task: UserTask | undefined) {
  return queryOptions({
    queryKey: keyOfEnd(task),
    queryFn: async ({ signal }): Promise<End> => {
      let cursor: string | undefined = "";
      for (let read = 0; cursor !== undefined && read < AUDIT_MAX_PAGES; read++) {
        const page: Awaited<ReturnType<typeof engine.audit>> = await engine.audit(task!.instanceId, cursor, signal);
        const end = page.items.find((record) => record.stepExecutionId === task!.executionId && record.kind.startsWith("STEP_"));
        if (end) return end;
        cursor = page.next;
      }
      return null;
    },
    enabled: task !== undefined,
    staleTime: ({ state }) => (state.data ? Number.POSITIVE_INFINITY : 0),
    refetchInterval: ({ state }) => (state.data ? false : REFRESH_MS),
  });
}

/** The engine has said that it is open no more, also where the audit trail does not tell how. */
async function askForEnd(queries: QueryClient, task: UserTask): Promise<void> {
  const end = await queries.fetchQuery(endOf(task)).catch(() => null);
  const untold: End = { kind: "", at: "" };
  if (!end) queries.setQueryData<End>(keyOfEnd(task), untold);
}

function Ended({ end: { kind, at, actor } }: { end: NonNullable<End> }) {
  return (
    <p className="refused" role="alert">
      {kind === "" ? "This task is open no more: it was completed, or the instance has ended" : kind === "STEP_COMPLETED" ? `${actor ?? "Somebody"} has completed this task: ` : "The instance went on without this task: "}
      {kind !== "" && <At at={at} />}. What you have typed was not sent, and stays here until you leave it.
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
