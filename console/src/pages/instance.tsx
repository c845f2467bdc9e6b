import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { type Definition, engine, type Execution, type Instance } from "../api/client";
import { statesOf, takenOf } from "../graph/edges";
import { Picture } from "../graph/picture";
import { timelineOf } from "../graph/timeline";
import { useShortcuts } from "../keyboard";
import { Dialog, VariablesField, variablesOf } from "../parts/dialog";
import { Icon } from "../parts/icons";
import { More } from "../parts/list";
import { Empty, Problem, Skeleton } from "../parts/states";
import { ExecutionBadge, InstanceStatusBadge } from "../parts/status";
import { Ago, At, duration, useNow } from "../parts/time";
import { useCan } from "../session";
import { EditDialog } from "./edit";
import { StartDialog } from "./start";

const REFRESH_MS = 1_000;
const TABS = ["timeline", "variables", "audit", "json"] as const;
type Tab = (typeof TABS)[number];
const TAB_WORDS: Record<Tab, string> = { timeline: "Timeline", variables: "Variables", audit: "Audit", json: "JSON" };

export function InstancePage({ id }: { id: string }) {
  const [params, change] = useAddress();
  const instance = useQuery({
    queryKey: ["instance", id],
    queryFn: ({ signal }) => engine.instance(id, signal),
    refetchInterval: (query) => (query.state.data?.completedAt === undefined ? REFRESH_MS : false),
  });
  const open = instance.data !== undefined && instance.data.completedAt === undefined;
  const history = useQuery({
    queryKey: ["history", id, open ? "open" : "ended"],
    queryFn: ({ signal }) => engine.history(id, signal),
    refetchInterval: open ? REFRESH_MS : false,
    enabled: instance.data !== undefined,
  });
  const definition = useQuery({
    queryKey: ["definition", instance.data?.definitionId, instance.data?.definitionVersion],
    queryFn: ({ signal }) => engine.definition(instance.data!.definitionId, instance.data!.definitionVersion, signal),
    enabled: instance.data !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
  });
  if (instance.error && !instance.data) return <Problem error={instance.error} retry={() => instance.refetch()} />;
  if (!instance.data) return <Skeleton />;
  const entries = history.data?.items ?? [];
  const selected = params.get("step") ?? undefined;
  const select = (step: string | undefined) => change({ step }, true);
  const tab = TABS.find((one) => one === params.get("tab")) ?? "timeline";
  return (
    <div className="instance">
      <Heading instance={instance.data} definition={definition.data} />
      <Why instance={instance.data} history={entries} definition={definition.data} />
      <div className="halves">
        <section aria-label="Picture" className="half">
          {definition.error ? <Problem error={definition.error} retry={() => definition.refetch()} /> : definition.data ? <Drawn definition={definition.data} history={entries} selected={selected} select={select} /> : <Skeleton rows={3} />}
        </section>
        <section className="half side" aria-label="Details">
          <div className="tabs" role="tablist">
            {TABS.map((one) => (
              <button key={one} type="button" role="tab" aria-selected={tab === one} aria-controls="tab" onClick={() => change({ tab: one === "timeline" ? undefined : one }, true)}>
                {TAB_WORDS[one]}
                {one === "timeline" && <span className="c">{entries.length}</span>}
                {one === "variables" && <span className="c">{Object.keys(instance.data.variables).length}</span>}
              </button>
            ))}
          </div>
          <div id="tab" role="tabpanel" aria-label={TAB_WORDS[tab]} className="panel" tabIndex={0}>
            {tab === "timeline" && (history.error ? <Problem error={history.error} retry={() => history.refetch()} /> : <TimelineTab history={entries} definition={definition.data} selected={selected} select={select} />)}
            {tab === "variables" && <Variables variables={instance.data.variables} />}
            {tab === "audit" && <Audit id={id} />}
            {tab === "json" && <pre className="json">{JSON.stringify(instance.data, null, 2)}</pre>}
          </div>
        </section>
      </div>
    </div>
  );
}

function Drawn({ definition, history, selected, select }: { definition: Definition; history: Execution[]; selected: string | undefined; select: (id: string | undefined) => void }) {
  const states = useMemo(() => statesOf(definition, history), [definition, history]);
  const taken = useMemo(() => takenOf(definition, history), [definition, history]);
  return <Picture definition={definition} states={states} taken={taken} selected={selected} onSelect={select} />;
}

type Asked = "retry" | "cancel" | "signal" | "complete" | "again" | "edit";

function Heading({ instance, definition }: { instance: Instance; definition: Definition | undefined }) {
  const [asked, setAsked] = useState<Asked>();
  const queries = useQueryClient();
  const operates = useCan("operate");
  const doesTasks = useCan("tasks");
  const open = instance.completedAt === undefined;
  const openSteps = (type: string) => (open ? (definition?.steps ?? []).filter((step) => step.type === type && instance.currentStepIds.includes(step.id)) : []);
  const waits = openSteps("WAIT");
  const tasks = openSteps("USER_TASK");
  const failed = instance.status === "FAILED" && operates;
  useShortcuts(useMemo(() => (failed ? { r: () => setAsked("retry") } : {}), [failed]));
  const done = async () => {
    await queries.invalidateQueries({ queryKey: ["instance", instance.id] });
    await queries.invalidateQueries({ queryKey: ["history", instance.id] });
    await queries.invalidateQueries({ queryKey: ["audit", instance.id] });
  };
  const close = () => setAsked(undefined);
  return (
    <header className="ihead">
      <div className="head">
        <h1>{definition?.name || instance.definitionId}</h1>
        <InstanceStatusBadge status={instance.status} />
        <span className="tag">{instance.id}</span>
        <div className="act">
          {!open && operates && (
            <button type="button" className="btn" onClick={() => setAsked("again")}>
              Start again with these variables
            </button>
          )}
          {operates && (instance.status === "FAILED" || instance.status === "WAITING") && (
            <button type="button" className="btn" onClick={() => setAsked("edit")}>
              Edit variables…
            </button>
          )}
          {open && operates && (
            <button type="button" className="btn bad" onClick={() => setAsked("cancel")}>
              Cancel…
            </button>
          )}
          {waits.length > 0 && operates && (
            <button type="button" className="btn pri" onClick={() => setAsked("signal")}>
              Signal…
            </button>
          )}
          {tasks.length > 0 && doesTasks && (
            <button type="button" className="btn pri" onClick={() => setAsked("complete")}>
              Complete task…
            </button>
          )}
          {failed && (
            <button type="button" className="btn pri" onClick={() => setAsked("retry")}>
              <Icon name="retry" />
              Retry
            </button>
          )}
        </div>
      </div>
      <Facts instance={instance} />
      {asked === "retry" && (
        <Dialog title="Retry this instance?" verb="Retry" close={close} act={() => engine.retry(instance.id).then(done)}>
          <p>It goes on at the step that failed, with the variables it has and all its retries again.</p>
        </Dialog>
      )}
      {asked === "cancel" && (
        <Dialog title="Cancel this instance?" verb="Cancel this instance" danger close={close} act={(form) => engine.cancel(instance.id, String(form.get("reason")).trim()).then(done)}>
          <p>Its open steps end; workers are told to stop. This can't be taken back.</p>
          <div className="field">
            <label htmlFor="reason">Reason, for the audit trail</label>
            <input id="reason" name="reason" className="in" maxLength={1000} />
          </div>
        </Dialog>
      )}
      {asked === "edit" && <EditDialog instance={instance} close={close} done={done} />}
      {asked === "signal" && <SignalDialog id={instance.id} steps={waits} close={close} done={done} />}
      {asked === "complete" && (
        <Dialog title="Complete a task" verb="Complete" close={close} act={(form) => engine.completeTask(instance.id, String(form.get("step")), variablesOf(String(form.get("variables")))).then(done)}>
          <StepField steps={tasks} />
          <VariablesField />
        </Dialog>
      )}
      {asked === "again" && <StartDialog definitionId={instance.definitionId} variables={instance.variables} close={close} />}
    </header>
  );
}

function SignalDialog({ id, steps, close, done }: { id: string; steps: Definition["steps"]; close: () => void; done: () => Promise<void> }) {
  const [key] = useState(() => crypto.randomUUID());
  return (
    <Dialog title="Send a signal" verb="Send" close={close} act={(form) => engine.signal(id, String(form.get("step")), variablesOf(String(form.get("variables"))), key).then(done)}>
      <StepField steps={steps} />
      <VariablesField />
    </Dialog>
  );
}

function StepField({ steps }: { steps: Definition["steps"] }) {
  return (
    <div className="field">
      <label htmlFor="step">Step</label>
      <select id="step" name="step" className="in">
        {steps.map((step) => (
          <option key={step.id} value={step.id}>
            {step.name || step.id}
          </option>
        ))}
      </select>
    </div>
  );
}

function Facts({ instance }: { instance: Instance }) {
  return (
    <dl className="facts">
      <div>
        <dt>Definition</dt>
        <dd>
          <Link href={`/definitions/${encodeURIComponent(instance.definitionId)}?version=${instance.definitionVersion}`}>
            {instance.definitionId} v{instance.definitionVersion}
          </Link>
        </dd>
      </div>
      {instance.businessKey !== undefined && (
        <div>
          <dt>Business key</dt>
          <dd>{instance.businessKey}</dd>
        </div>
      )}
      {instance.instanceKey !== undefined && (
        <div>
          <dt>Instance key</dt>
          <dd>{instance.instanceKey}</dd>
        </div>
      )}
      <div>
        <dt>Started</dt>
        <dd>
          <Ago at={instance.startedAt} />
        </dd>
      </div>
      {instance.completedAt !== undefined && (
        <div>
          <dt>Ended</dt>
          <dd>
            <Ago at={instance.completedAt} />, after {duration(Date.parse(instance.completedAt) - Date.parse(instance.startedAt))}
          </dd>
        </div>
      )}
      {instance.parentInstanceId !== undefined && (
        <div>
          <dt>Chained from</dt>
          <dd>
            <Link href={`/instances/${encodeURIComponent(instance.parentInstanceId)}`}>
              <code>{instance.parentInstanceId}</code>
            </Link>
          </dd>
        </div>
      )}
    </dl>
  );
}

/** In one sentence why it stands where it stands. */
function Why({ instance, history, definition }: { instance: Instance; history: Execution[]; definition: Definition | undefined }) {
  const name = (id: string) => definition?.steps.find((step) => step.id === id)?.name || id;
  const failed = history.findLast((entry) => entry.status === "FAILED");
  if (instance.status === "FAILED") {
    const times = failed?.attempts?.length ?? 0;
    const reason = instance.failureReason ?? failed?.failureReason ?? "";
    return (
      <div className="why fail" role="status">
        <div>
          <b>
            {failed ? `${name(failed.stepId)} failed for good` : "This instance failed"}
            {times > 1 && ` after ${times} attempts`}
          </b>
          <p className="mono">{reason}</p>
        </div>
        <button type="button" className="btn sm" onClick={() => navigator.clipboard.writeText(reason)}>
          <Icon name="copy" />
          Copy error
        </button>
      </div>
    );
  }
  const openEntries = history.filter((entry) => entry.status === "RUNNING");
  if (instance.completedAt !== undefined || openEntries.length === 0) return null;
  const said = openEntries.slice(0, 3).map((entry) => `${name(entry.stepId)} ${sentence(entry)}`);
  return (
    <div className={`why ${instance.status === "WAITING" ? "wait" : "run"}`} role="status">
      <div>
        <b>{said.join("; ")}</b>
        {openEntries.length > 3 && <p>and {openEntries.length - 3} more steps are open</p>}
      </div>
    </div>
  );
}

function sentence(entry: Execution): string {
  const last = entry.attempts?.at(-1);
  if (entry.stepType === "USER_TASK") return "waits for a person";
  if (entry.stepType === "WAIT") return "waits for a signal or its time";
  if (entry.stepType === "JOIN_GATEWAY") return "waits for other branches";
  if (last?.startedAt !== undefined && last.endedAt === undefined) return `runs at ${last.worker ?? "a worker"}`;
  if (last?.reason !== undefined) return `will be tried again: ${last.reason}`;
  return "waits for a worker";
}

function TimelineTab({ history, definition, selected, select }: { history: Execution[]; definition: Definition | undefined; selected: string | undefined; select: (id: string | undefined) => void }) {
  const now = useNow();
  const open = history.some((entry) => entry.endedAt === undefined);
  const until = open ? now : 0;
  const timeline = useMemo(() => timelineOf(history, until), [history, until]);
  const names = new Map(definition?.steps.map((step) => [step.id, step.name]));
  if (history.length === 0) return <Empty title="Nothing has run yet" />;
  const chosen = history.filter((entry) => entry.stepId === selected);
  return (
    <>
      <div className="gantt-head" aria-hidden="true">
        <span>Step</span>
        <span>{timeline.folded && "long gaps folded"}</span>
      </div>
      <ol className="gantt">
        {timeline.rows.map(({ execution, bars, ms }) => (
          <li key={execution.id} className={execution.stepId === selected ? "on" : ""}>
            <button type="button" aria-pressed={execution.stepId === selected} onClick={() => select(execution.stepId === selected ? undefined : execution.stepId)}>
              <span className="name">
                {names.get(execution.stepId) || execution.stepId}
                {execution.attemptNumber > 1 && <span className="mute"> ×{execution.attemptNumber}</span>}
              </span>
              <span className="track">
                {bars.map((bar, at) => (
                  // biome-ignore lint: bars of a row keep their order
                  <i key={at} className={bar.look} title={bar.text} style={{ left: `${bar.from * 100}%`, width: `${(bar.to - bar.from) * 100}%` }} />
                ))}
              </span>
              <span className="took">{(execution.attempts?.length ?? 0) > 1 ? `${execution.attempts!.length} attempts` : duration(ms)}</span>
              <span className="sr">{execution.status.toLowerCase()}</span>
            </button>
          </li>
        ))}
      </ol>
      {chosen.map((entry) => (
        <Attempts key={entry.id} entry={entry} name={names.get(entry.stepId) || entry.stepId} />
      ))}
    </>
  );
}

function Attempts({ entry, name }: { entry: Execution; name: string }) {
  return (
    <section className="attempts" aria-label={`Attempts of ${name}`}>
      <h2>
        {name} <span className="tag">{entry.stepId}</span> <ExecutionBadge status={entry.status} />
      </h2>
      <p className="mute">
        Entered <At at={entry.startedAt} />
        {entry.endedAt !== undefined && (
          <>
            , ended <At at={entry.endedAt} />
          </>
        )}
      </p>
      {entry.failureReason !== undefined && <p className="mono refused">{entry.failureReason}</p>}
      {(entry.attempts ?? []).length > 0 && (
        <ol className="card">
          {entry.attempts!.map((attempt) => (
            <li key={attempt.attempt}>
              <div>
                <b>Attempt {attempt.attempt}</b>
                {attempt.worker !== undefined && ` · ${attempt.worker}`}
                {attempt.reason !== undefined && <p className="mono">{attempt.reason}</p>}
              </div>
              <span className="mute">{attempt.startedAt !== undefined && attempt.endedAt !== undefined ? duration(Date.parse(attempt.endedAt) - Date.parse(attempt.startedAt)) : attempt.status.toLowerCase()}</span>
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}

const SHOWN_MAX_CHARS = 256 * 1024;

function Variables({ variables }: { variables: Record<string, unknown> }) {
  const [word, setWord] = useState("");
  const rows = useMemo(() => Object.entries(variables).map(([name, value]): [string, string] => [name, JSON.stringify(value, null, 2)]), [variables]);
  const shown = rows.filter(([name, text]) => word === "" || name.includes(word) || text.includes(word));
  if (rows.length === 0) return <Empty title="This instance has no variables" />;
  return (
    <>
      <div className="vtools">
        <input aria-label="Search variables" placeholder="Search variables" className="in" value={word} onChange={(event) => setWord(event.target.value)} />
        <button type="button" className="btn sm" onClick={() => navigator.clipboard.writeText(JSON.stringify(variables, null, 2))}>
          <Icon name="copy" />
          Copy all
        </button>
      </div>
      <dl className="vars">
        {shown.map(([name, text]) => (
          <div key={name}>
            <dt className="mono">{name}</dt>
            <dd>{text.length > SHOWN_MAX_CHARS ? <Large text={text} /> : <pre>{text}</pre>}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}

function Large({ text }: { text: string }) {
  const [open, setOpen] = useState(false);
  if (open) return <pre>{text}</pre>;
  return (
    <button type="button" className="btn sm" onClick={() => setOpen(true)}>
      Show {Math.round(text.length / 1024)} kB
    </button>
  );
}

function Audit({ id }: { id: string }) {
  const pages = useInfiniteQuery({
    queryKey: ["audit", id],
    queryFn: ({ pageParam, signal }) => engine.audit(id, pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
  });
  if (pages.error) return <Problem error={pages.error} retry={() => pages.refetch()} />;
  if (pages.isPending) return <Skeleton />;
  const records = pages.data.pages.flatMap((page) => page.items);
  return (
    <>
      <table>
        <thead>
          <tr>
            <th>When</th>
            <th>What</th>
            <th>Step</th>
            <th>Who</th>
          </tr>
        </thead>
        <tbody>
          {records.map((record, at) => (
            // biome-ignore lint: records only grow at the end
            <tr key={at} title={record.detail}>
              <td className="mute">
                <At at={record.at} />
              </td>
              <td>
                {record.kind.replaceAll("_", " ").toLowerCase()}
                {record.detail !== undefined && <div className="detail mute">{record.detail}</div>}
              </td>
              <td>{record.stepId ?? "–"}</td>
              <td className="mute">{record.actor ?? "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <More pages={pages} />
    </>
  );
}
