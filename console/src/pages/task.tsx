// One task of the inbox: its form, or JSON, what is known of its instance, and whose it is.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { Link } from "wouter";
import { EngineError, engine, type UserTask } from "../api/client";
import { textOf } from "../modeller/json";
import { variablesOf } from "../parts/dialog";
import { Fields, given, initial, problemsOf, type Schema, schemaOf } from "../parts/form";
import { Problem, Skeleton } from "../parts/states";
import { Ago } from "../parts/time";
import { type Clerk, isOver, isTheirs, nameOf, Theirs } from "./clerk";
import { type Begun, begunOf, keepBegun } from "./inbox";

interface TaskProps {
  task: UserTask;
  may: boolean;
  clerk: Clerk;
  /** For whom what is typed is kept. */
  who: string;
  /** It stands alone: the keys go to its heading, not into a field, for which phones would show their own. */
  alone: boolean;
  /** A dialog of the page is open. */
  asking: boolean;
  claim: () => unknown;
  release: () => void;
  /** The engine has answered that it is open no more. */
  over: () => Promise<void>;
  /** In place of completion, where it is open no more. */
  leave: { word: string; act: () => void } | undefined;
  completed: (by: string | undefined) => Promise<void>;
}

const FIELD = "input, textarea, select";

export function Task(props: TaskProps) {
  const { task, may, clerk, alone, asking, claim, release } = props;
  const definition = useQuery({
    queryKey: ["definition", task.definitionId, task.version],
    queryFn: ({ signal }) => engine.definition(task.definitionId, task.version, signal),
    staleTime: Number.POSITIVE_INFINITY,
  });
  const instance = useQuery({ queryKey: ["instance", task.instanceId], queryFn: ({ signal }) => engine.instance(task.instanceId, signal) });
  const work = useRef<HTMLDivElement>(null);
  const had = useRef(task.assignee);
  useEffect(() => work.current?.querySelector<HTMLElement>(alone ? "h2" : `form :is(${FIELD})`)?.focus(), [definition.data]);
  useEffect(() => {
    if (asking || had.current === task.assignee) return;
    had.current = task.assignee;
    // The button that was pressed is another one now: the keys go on in the form.
    if (document.activeElement === document.body) work.current?.querySelector<HTMLElement>(FIELD)?.focus();
  }, [asking, task.assignee]);
  if (definition.error) return <Problem error={definition.error} retry={() => definition.refetch()} />;
  if (!definition.data) return <Skeleton />;
  const about = definition.data.steps.find((step) => step.id === task.stepId);
  return (
    <>
      <div className="work" ref={work}>
        <h2 tabIndex={-1}>{nameOf(task)}</h2>
        <p className="mute">
          {task.summary !== undefined && <>{task.summary} · </>}
          <Link href={`/instances/${encodeURIComponent(task.instanceId)}?step=${encodeURIComponent(task.stepId)}`}>{task.businessKey ?? task.instanceId}</Link> · open <Ago at={task.openedAt} />
        </p>
        {about?.description && <p>{about.description}</p>}
        {isTheirs(task, clerk) && !props.leave && (
          <p className="banner wait">
            <b>{task.assignee}</b> has this task. Whoever completes it takes it from them.
          </p>
        )}
        {may ? (
          <TaskForm {...props} schema={schemaOf(definition.data, task.stepId)}>
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

interface FormProps extends TaskProps {
  schema: Schema | undefined;
  children: React.ReactNode;
}

function TaskForm({ task, clerk, who, over, leave, completed, schema, children }: FormProps) {
  const [typed, setTyped] = useState<Begun>(() => begunOf(who, task) ?? { values: schema ? initial(schema) : {}, text: "{}" });
  const { values, text } = typed;
  const keep = (next: Begun) => {
    keepBegun(who, task, next);
    setTyped(next);
  };
  const [tries, setTries] = useState(0);
  const [busy, setBusy] = useState(false);
  const [confirming, setConfirming] = useState<string>(); // who has it
  const [reason, setReason] = useState<string>();
  const form = useRef<HTMLFormElement>(null);
  const problems = tries > 0 && schema ? problemsOf(schema, values) : {};
  const unread = tries > 0 && !schema ? unreadable(text) : undefined;
  const send = async (by: string) => {
    try {
      await engine.completeTask(task.instanceId, task.stepId, schema ? given(values) : variablesOf(text), task.executionId, clerk.nameless && by ? by : undefined);
    } catch (error) {
      if (isOver(error)) return await over();
      throw error;
    }
    await completed(by);
  };
  const submit = async () => {
    if (busy || leave) return;
    setTries(tries + 1);
    setReason(undefined);
    if (schema ? Object.keys(problemsOf(schema, values)).length > 0 : unreadable(text) !== undefined) return;
    if (isTheirs(task, clerk)) return setConfirming(task.assignee);
    setBusy(true);
    try {
      await send(clerk.name);
    } catch (error) {
      setReason(error instanceof EngineError ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  useEffect(() => {
    // The first that is wrong: of a narrow or enlarged page it may be far from the button.
    const wrong = form.current?.querySelector(".field > .wrong")?.closest(".field");
    wrong?.querySelector<HTMLElement>("input:checked, input, textarea, select, button")?.focus({ preventScroll: true });
    wrong?.scrollIntoView({ block: "nearest" });
  }, [tries]);
  useEffect(() => {
    // The button that was pressed is another one now.
    if (leave && tries > 0 && confirming === undefined && document.activeElement === document.body) form.current?.querySelector<HTMLElement>(".acts .btn")?.focus();
  }, [leave !== undefined, confirming]);
  return (
    <>
      <form
        ref={form}
        className="card"
        noValidate
        onInput={() => begunOf(who, task) ?? keepBegun(who, task, typed)} // also what is no value yet, such as half a date
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) {
            event.preventDefault();
            // Keys that are held down do not go on with the next one.
            if (!event.repeat) void submit();
          }
        }}
      >
        {schema ? (
          <Fields schema={schema} values={values} problems={problems} change={(values) => keep({ values, text })} />
        ) : (
          <div className="field">
            <label htmlFor="result">Result, as a JSON object</label>
            <textarea id="result" className="in mono" rows={8} value={text} spellCheck={false} aria-invalid={unread !== undefined} aria-describedby="unread" onChange={(event) => keep({ values, text: event.target.value })} />
            <p id="unread" className={unread === undefined ? "mute" : "wrong"}>
              {unread}
            </p>
          </div>
        )}
        {reason !== undefined && (
          <p className="refused" role="alert">
            {reason}
          </p>
        )}
        <div className="acts">
          {leave ? (
            <button type="button" className="btn pri" onClick={leave.act}>
              {leave.word}
            </button>
          ) : (
            <>
              {children}
              {/* Not disabled while it is busy: it would lose the focus. */}
              <button type="submit" className="btn pri" aria-disabled={busy} title="Ctrl or ⌘ and Enter">
                Complete
              </button>
            </>
          )}
        </div>
      </form>
      {confirming !== undefined && <Theirs assignee={confirming} verb="Complete it anyway" clerk={clerk} close={() => setConfirming(undefined)} act={send} />}
    </>
  );
}

function unreadable(text: string): string | undefined {
  try {
    variablesOf(text);
  } catch (error) {
    return (error as Error).message;
  }
}
