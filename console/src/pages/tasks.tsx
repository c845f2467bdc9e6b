// The inbox: what waits for a person, one task open at a time; after completion the next one is.
import { keepPreviousData, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useEffect, useMemo, useRef, useState } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { type Definition, EngineError, engine, type UserTask } from "../api/client";
import { useShortcuts } from "../keyboard";
import { textOf } from "../modeller/json";
import { Dialog, variablesOf } from "../parts/dialog";
import { Fields, given, initial, problemsOf, type Schema, type Values } from "../parts/form";
import { More } from "../parts/list";
import { Empty, Problem, Skeleton } from "../parts/states";
import { Ago, duration, useNow } from "../parts/time";
import { useCan, useMe } from "../session";

const REFRESH_MS = 2_000;
const WHOSE = { all: "All", mine: "Mine", nobody: "Nobody's" } as const;
type Whose = keyof typeof WHOSE;

// Without authentication nobody has a name: what somebody calls themselves is remembered by this page alone.
let called = "";

function keyOf(task: UserTask): string {
  return `${task.instanceId}/${task.stepId}${task.item === undefined ? "" : `/${task.item}`}`;
}

/** Items of a forEach are counted from 1, as people do. */
function nameOf(task: UserTask): string {
  return task.item === undefined ? task.name : `${task.name} · item ${task.item + 1}`;
}

export function TasksPage() {
  const [params, change] = useAddress();
  const me = useMe().data?.name;
  const name = me ?? called;
  const may = useCan("tasks");
  const queries = useQueryClient();
  const jobType = params.get("jobType") ?? "";
  const whose = (params.get("whose") ?? "all") as Whose;
  const pages = useInfiniteQuery({
    queryKey: ["tasks", jobType, whose, name],
    queryFn: ({ pageParam, signal }) => engine.tasks({ jobType, ...(whose === "mine" && { assignee: name || "–" }), ...(whose === "nobody" && { unclaimed: true }) }, pageParam, signal),
    placeholderData: keepPreviousData,
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
    refetchInterval: REFRESH_MS,
  });
  const rows = useMemo(() => pages.data?.pages.flatMap((page) => page.items) ?? [], [pages.data]);
  const chosen = params.get("task") ?? "";
  // What somebody types in stays before them, also when it is open no more: what is typed is not for the next one.
  const [held, hold] = useState<UserTask>();
  const listed = rows.find((task) => keyOf(task) === (chosen || (held && keyOf(held))));
  const kept = held && (chosen === "" || chosen === keyOf(held)) ? held : undefined;
  const open = listed ?? kept ?? rows[0];
  const [asking, setAsking] = useState(false);
  const [refused, refuse] = useState<string>();
  const pick = (changes: Record<string, string | undefined>) => {
    hold(undefined);
    refuse(undefined);
    change(changes);
  };
  const step = (by: number) => {
    const at = rows.findIndex((task) => open && keyOf(task) === keyOf(open)) + by;
    const next = rows[at];
    if (next) pick({ task: keyOf(next) });
  };
  const refresh = () => queries.invalidateQueries({ queryKey: ["tasks"] });
  const claim = async (by: string | undefined) => open && engine.claimTask(open, by);
  const told = async (acted: Promise<unknown>) => {
    refuse(undefined);
    await acted.catch((error: Error) => refuse(error.message));
    await refresh();
  };
  const claimOrAsk = () => (me === undefined && called === "" ? setAsking(true) : told(claim(me === undefined ? called : undefined)));
  useShortcuts(useMemo(() => ({ j: () => step(1), k: () => step(-1), ...(may && open && open.assignee === undefined ? { c: () => void claimOrAsk() } : {}) }), [rows, open, may]));
  const completed = async () => {
    const at = rows.findIndex((task) => open && keyOf(task) === keyOf(open));
    const next = rows[at + 1] ?? rows[at - 1];
    pick({ task: next ? keyOf(next) : undefined });
    await refresh();
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
              <button key={one} type="button" aria-pressed={whose === one} onClick={() => pick({ whose: one === "all" ? undefined : one, task: undefined })}>
                {WHOSE[one]}
              </button>
            ))}
          </div>
          <form
            key={jobType}
            className="fields"
            onSubmit={(event: FormEvent<HTMLFormElement>) => {
              event.preventDefault();
              pick({ jobType: String(new FormData(event.currentTarget).get("type")).trim() || undefined, task: undefined });
            }}
          >
            <input name="type" aria-label="For whom (job type)" placeholder="For whom" defaultValue={jobType} className="in mono" maxLength={256} />
          </form>
        </div>
        {pages.error ? (
          <Problem error={pages.error} retry={() => pages.refetch()} />
        ) : pages.isPending ? (
          <Skeleton />
        ) : rows.length === 0 ? (
          <Empty title={whose === "mine" ? "No task is yours" : "Nothing waits for a person"}>
            <p>Open user tasks are listed here, the oldest first.</p>
          </Empty>
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
        {!listed && kept && <p className="refused note" role="alert">This task is no longer in the list: it was completed, or somebody else has it now.</p>}
        {refused !== undefined && (
          <p className="refused note" role="alert">
            {refused}
          </p>
        )}
        {open && <Task key={keyOf(open)} task={open} may={may} claim={claimOrAsk} release={() => void told(engine.releaseTask(open))} typed={() => hold(open)} completed={completed} />}
      </section>
      {asking && (
        <Dialog
          title="Who are you?"
          verb="Claim"
          close={() => setAsking(false)}
          act={async (form) => {
            const by = String(form.get("by")).trim();
            if (!by) throw new SyntaxError("A name, so that others see who has the task.");
            await claim(by);
            called = by;
            await refresh();
          }}
        >
          <p>This engine knows no names: it has no authentication. Others see what you write.</p>
          <div className="field">
            <label htmlFor="by">Your name</label>
            <input id="by" name="by" className="in" maxLength={256} autoComplete="name" />
          </div>
        </Dialog>
      )}
    </div>
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

interface TaskProps {
  task: UserTask;
  may: boolean;
  claim: () => unknown;
  release: () => void;
  /** Somebody has begun to fill it in. */
  typed: () => void;
  completed: () => Promise<void>;
}

function Task({ task, may, claim, release, typed, completed }: TaskProps) {
  const definition = useQuery({
    queryKey: ["definition", task.definitionId, task.version],
    queryFn: ({ signal }) => engine.definition(task.definitionId, task.version, signal),
    staleTime: Number.POSITIVE_INFINITY,
  });
  const instance = useQuery({ queryKey: ["instance", task.instanceId], queryFn: ({ signal }) => engine.instance(task.instanceId, signal) });
  if (definition.error) return <Problem error={definition.error} retry={() => definition.refetch()} />;
  if (!definition.data) return <Skeleton />;
  const about = definition.data.steps.find((step) => step.id === task.stepId);
  return (
    <>
      <div className="work">
        <h2>{nameOf(task)}</h2>
        <p className="mute">
          {task.summary !== undefined && <>{task.summary} · </>}
          <Link href={`/instances/${encodeURIComponent(task.instanceId)}?step=${encodeURIComponent(task.stepId)}`}>{task.businessKey ?? task.instanceId}</Link> · open <Ago at={task.openedAt} />
        </p>
        {about?.description && <p>{about.description}</p>}
        {may ? (
          <TaskForm task={task} schema={schemaOf(definition.data, task.stepId)} typed={typed} completed={completed}>
            {task.assignee === undefined ? (
              <button type="button" className="btn" onClick={claim}>
                Claim
              </button>
            ) : (
              <>
                <span className="mute">{task.assignee} has it</span>
                <button type="button" className="btn" onClick={release}>
                  Give back
                </button>
              </>
            )}
          </TaskForm>
        ) : (
          <p className="mute">Your role does not complete tasks.</p>
        )}
      </div>
      <aside className="card known" aria-label="What is known">
        <h2>What is known</h2>
        {instance.error ? <Problem error={instance.error} retry={() => instance.refetch()} /> : instance.data ? <Known variables={instance.data.variables} /> : <Skeleton rows={3} />}
        <Link href={`/instances/${encodeURIComponent(task.instanceId)}`}>Open the instance</Link>
      </aside>
    </>
  );
}

const KNOWN_MAX = 8;
const VALUE_MAX_CHARS = 120;

function Known({ variables }: { variables: Record<string, unknown> }) {
  const rows = Object.entries(variables);
  if (rows.length === 0) return <p className="mute">It has no variables.</p>;
  return (
    <dl>
      {rows.slice(0, KNOWN_MAX).map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{short(value)}</dd>
        </div>
      ))}
      {rows.length > KNOWN_MAX && <p className="mute">and {rows.length - KNOWN_MAX} more</p>}
    </dl>
  );
}

function short(value: unknown): string {
  const text = typeof value === "string" ? value : textOf(value);
  return text.length > VALUE_MAX_CHARS ? `${text.slice(0, VALUE_MAX_CHARS)}…` : text;
}

function schemaOf(definition: Definition, stepId: string): Schema | undefined {
  const forms = (definition.metadata as { forms?: Record<string, { schema?: Schema }> } | undefined)?.forms;
  const schema = forms?.[stepId]?.schema;
  return schema?.properties ? schema : undefined;
}

interface FormProps extends Pick<TaskProps, "task" | "typed" | "completed"> {
  schema: Schema | undefined;
  children: React.ReactNode;
}

function TaskForm({ task, schema, typed, completed, children }: FormProps) {
  const [values, setValues] = useState<Values>(() => (schema ? initial(schema) : {}));
  const [text, setText] = useState("{}");
  const [shown, setShown] = useState(false);
  const [busy, setBusy] = useState(false);
  const [reason, setReason] = useState<string>();
  const form = useRef<HTMLFormElement>(null);
  const problems = shown && schema ? problemsOf(schema, values) : {};
  const submit = async () => {
    setShown(true);
    setReason(undefined);
    if (schema && Object.keys(problemsOf(schema, values)).length > 0) return;
    setBusy(true);
    try {
      await engine.completeTask(task.instanceId, task.stepId, schema ? given(values) : variablesOf(text), task.executionId);
      await completed();
    } catch (error) {
      setReason(error instanceof EngineError || error instanceof SyntaxError ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  useEffect(() => {
    form.current?.querySelector<HTMLElement>("input, textarea, select")?.focus();
  }, []);
  return (
    <form
      ref={form}
      className="card"
      noValidate
      onInput={typed}
      onSubmit={(event) => {
        event.preventDefault();
        void submit();
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) {
          event.preventDefault();
          // Keys that are held down do not go on with the next one.
          if (!event.repeat && !busy) void submit();
        }
      }}
    >
      {schema ? (
        <Fields schema={schema} values={values} problems={problems} change={setValues} />
      ) : (
        <div className="field">
          <label htmlFor="result">Result, as a JSON object</label>
          <textarea id="result" className="in mono" rows={8} value={text} spellCheck={false} onChange={(event) => setText(event.target.value)} />
        </div>
      )}
      {reason !== undefined && (
        <p className="refused" role="alert">
          {reason}
        </p>
      )}
      <div className="acts">
        {children}
        <button type="submit" className="btn pri" disabled={busy} title="Ctrl or ⌘ and Enter">
          Complete
        </button>
      </div>
    </form>
  );
}
