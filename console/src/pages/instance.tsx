import { keepPreviousData, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { type Definition, engine, type Execution, type HistoryPage, type Instance, type InstanceState, type InstanceSummary, newKey, type Why } from "../api/client";
import { statesOf, takenOf } from "../graph/edges";
import { Picture } from "../graph/picture";
import { timelineOf } from "../graph/timeline";
import { useShortcuts } from "../keyboard";
import { CopyButton } from "../parts/copy";
import { Dialog, VariablesField, variablesOf } from "../parts/dialog";
import { Icon } from "../parts/icons";
import { More } from "../parts/list";
import { Empty, Problem, Skeleton } from "../parts/states";
import { ExecutionBadge, InstanceStatusBadge } from "../parts/status";
import { Ago, At, bothZones, duration, useNow } from "../parts/time";
import { useCan } from "../session";
import { useWatch } from "../watch/watch";
import { EditDialog } from "./edit";
import { Journal, RunTreeView } from "./run";
import { StartDialog } from "./start";

/** Changes are told; this is for what time alone changes, such as a queue that nobody polls. */
const REFRESH_MS = 15_000;
const TABS = ["timeline", "journal", "variables", "audit", "timers", "json"] as const;
type Tab = (typeof TABS)[number];
const TAB_WORDS: Record<Tab, string> = { timeline: "Timeline", journal: "Journal", variables: "Variables", audit: "Audit", timers: "Timers", json: "JSON" };

/** What moved: with it, what was read of the instance is read again. */
function markOf(state: InstanceState): string {
  return [state.instance.status, ...state.tokens.map((token) => `${token.id} ${token.state} ${token.attempt}`), state.timers.length, state.signals].join("|");
}

export function InstancePage({ id }: { id: string }) {
  const [params, change] = useAddress();
  const state = useQuery({
    queryKey: ["state", id],
    queryFn: ({ signal }) => engine.state(id, signal),
    refetchInterval: (query) => (query.state.data?.instance.completedAt === undefined ? REFRESH_MS : false),
  });
  const queries = useQueryClient();
  const goesOn = state.data !== undefined && state.data.instance.completedAt === undefined;
  useWatch(goesOn ? [id] : [], undefined, () => void queries.invalidateQueries({ queryKey: ["state", id] }));
  const mark = state.data && markOf(state.data);
  const history = useInfiniteQuery({
    queryKey: ["history", id, mark],
    queryFn: ({ pageParam, signal }) => engine.history(id, pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
    enabled: mark !== undefined,
    placeholderData: keepPreviousData,
  });
  const shown = state.data?.instance;
  const definition = useQuery({
    queryKey: ["definition", shown?.definitionId, shown?.definitionVersion],
    queryFn: ({ signal }) => engine.definition(shown!.definitionId, shown!.definitionVersion, signal),
    enabled: shown !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
  });
  const entries = useMemo(() => entriesOf(history.data?.pages ?? []), [history.data]);
  if (state.error && !state.data) return <Problem error={state.error} retry={() => state.refetch()} />;
  if (!state.data) return <Skeleton />;
  const selected = params.get("step") ?? undefined;
  const select = (step: string | undefined) => change({ step }, true);
  // A workflow written as code has one step, which an executor runs: what there is to see is its branches and its journal.
  const asCode = definition.data?.steps[0]?.jobType?.startsWith("code:") ?? false;
  const tabs = TABS.filter((one) => one !== "journal" || asCode);
  const tab = tabs.find((one) => one === params.get("tab")) ?? "timeline";
  return (
    <div className="instance">
      <Heading instance={state.data.instance} definition={definition.data} childIds={state.data.children} />
      <WhyLine why={state.data.why} instance={state.data.instance} signals={state.data.signals} />
      <div className="halves">
        <section aria-label={asCode ? "Branches" : "Picture"} className="half">
          {asCode ? <RunTreeView id={id} open={goesOn} /> : definition.error ? <Problem error={definition.error} retry={() => definition.refetch()} /> : definition.data ? <Drawn definition={definition.data} history={entries} selected={selected} select={select} /> : <Skeleton rows={3} />}
        </section>
        <section className="half side" aria-label="Details">
          <div className="tabs" role="tablist">
            {tabs.map((one) => (
              <button key={one} type="button" role="tab" aria-selected={tab === one} aria-controls="tab" onClick={() => change({ tab: one === "timeline" ? undefined : one }, true)}>
                {TAB_WORDS[one]}
                {one === "timeline" && <span className="c">{`${entries.length}${history.hasNextPage ? "+" : ""}`}</span>}
                {one === "timers" && <span className="c">{state.data.timers.length}</span>}
              </button>
            ))}
          </div>
          <div id="tab" role="tabpanel" aria-label={TAB_WORDS[tab]} className="panel" tabIndex={0}>
            {tab === "timeline" && (
              <>
                {history.error ? <Problem error={history.error} retry={() => history.refetch()} /> : history.isPending ? <Skeleton /> : <TimelineTab history={entries} definition={definition.data} selected={selected} select={select} />}
                <More pages={history} />
              </>
            )}
            {tab === "journal" && <Journal id={id} />}
            {tab === "variables" && (
              <>
                <AsOf entries={entries} definition={definition.data} chosen={params.get("after") ?? ""} choose={(after) => change({ after: after || undefined }, true)} />
                {params.get("after") ? (
                  <VariablesAfter id={id} after={params.get("after")!} />
                ) : (
                  <WithVariables id={id} mark={mark}>{(instance) => <Variables variables={instance.variables} />}</WithVariables>
                )}
              </>
            )}
            {tab === "audit" && <Audit id={id} />}
            {tab === "timers" && <Timers timers={state.data.timers} definition={definition.data} open={goesOn} />}
            {tab === "json" && <WithVariables id={id} mark={mark}>{(instance) => <pre className="json">{JSON.stringify(instance, null, 2)}</pre>}</WithVariables>}
          </div>
        </section>
      </div>
    </div>
  );
}

/** Which moment's variables are shown: now, or as one of the executions that are loaded left them. */
function AsOf({ entries, definition, chosen, choose }: { entries: Execution[]; definition: Definition | undefined; chosen: string; choose: (id: string) => void }) {
  const names = new Map(definition?.steps.map((step) => [step.id, step.name]));
  const ended = entries.filter((entry) => entry.endedAt !== undefined && entry.stepType !== "END");
  if (ended.length === 0 && chosen === "") return null;
  return (
    <label className="asof">
      As of{" "}
      <select className="in" value={chosen} onChange={(event) => choose(event.target.value)}>
        <option value="">now</option>
        {chosen !== "" && !ended.some((entry) => entry.id === chosen) && <option value={chosen}>{chosen}</option>}
        {ended.map((entry) => (
          <option key={entry.id} value={entry.id}>
            {`after ${names.get(entry.stepId) || entry.stepId}${entry.attemptNumber > 1 ? ` ×${entry.attemptNumber}` : ""}`}
          </option>
        ))}
      </select>
    </label>
  );
}

function VariablesAfter({ id, after }: { id: string; after: string }) {
  const found = useQuery({ queryKey: ["variables", id, after], queryFn: ({ signal }) => engine.variablesAfter(id, after, signal), staleTime: Number.POSITIVE_INFINITY });
  if (found.error) return <Problem error={found.error} retry={() => found.refetch()} />;
  return found.data ? <Variables variables={found.data.variables as Record<string, unknown>} changed={found.data.changed} /> : <Skeleton rows={4} />;
}

/** In order of entry. Once all are there, they are counted by step. */
function entriesOf(pages: HistoryPage[]): Execution[] {
  const entries = pages.flatMap((page) => page.items).reverse();
  if (pages.length === 0 || pages.at(-1)?.next !== undefined) return entries;
  const times = new Map<string, number>();
  return entries.map((entry) => {
    const attemptNumber = (times.get(entry.stepId) ?? 0) + 1;
    times.set(entry.stepId, attemptNumber);
    return { ...entry, attemptNumber };
  });
}

/** The instance with its variables, which are read where they are shown only. */
function WithVariables({ id, mark, children }: { id: string; mark: string | undefined; children: (instance: Instance) => React.ReactNode }) {
  const instance = useQuery({ queryKey: ["instance", id, mark], queryFn: ({ signal }) => engine.instance(id, signal), placeholderData: keepPreviousData });
  if (instance.error) return <Problem error={instance.error} retry={() => instance.refetch()} />;
  return instance.data ? children(instance.data) : <Skeleton />;
}

function Drawn({ definition, history, selected, select }: { definition: Definition; history: Execution[]; selected: string | undefined; select: (id: string | undefined) => void }) {
  const states = useMemo(() => statesOf(definition, history), [definition, history]);
  const taken = useMemo(() => takenOf(definition, history), [definition, history]);
  return <Picture definition={definition} states={states} taken={taken} selected={selected} onSelect={select} />;
}

type Asked = "retry" | "cancel" | "signal" | "complete" | "again" | "edit";

function Heading({ instance, definition, childIds }: { instance: InstanceSummary; definition: Definition | undefined; childIds: string[] }) {
  const [asked, setAsked] = useState<Asked>();
  const queries = useQueryClient();
  const operates = useCan("operate");
  const doesTasks = useCan("tasks");
  const open = instance.completedAt === undefined;
  const openSteps = (type: string) => (open ? (definition?.steps ?? []).filter((step) => step.type === type && instance.currentStepIds.includes(step.id)) : []);
  // A signal may come before its wait is open: it is kept for it.
  const waits = open ? [...openSteps("WAIT"), ...(definition?.steps ?? []).filter((step) => step.type === "WAIT" && !instance.currentStepIds.includes(step.id))] : [];
  const waitsNow = waits.some((step) => instance.currentStepIds.includes(step.id));
  const tasks = openSteps("USER_TASK");
  const failed = instance.status === "FAILED" && operates;
  useShortcuts(useMemo(() => (failed ? { r: () => setAsked("retry") } : {}), [failed]));
  const done = async () => {
    await queries.invalidateQueries({ queryKey: ["state", instance.id] });
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
            <button type="button" className={waitsNow ? "btn pri" : "btn"} onClick={() => setAsked("signal")}>
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
      <Facts instance={instance} childIds={childIds} />
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
      {asked === "edit" && (
        <WithVariables id={instance.id} mark={undefined}>
          {(whole) => <EditDialog instance={whole} close={close} done={done} />}
        </WithVariables>
      )}
      {asked === "signal" && <SignalDialog id={instance.id} steps={waits} open={instance.currentStepIds} close={close} done={done} />}
      {asked === "complete" && (
        <Dialog title="Complete a task" verb="Complete" close={close} act={(form) => engine.completeTask(instance.id, String(form.get("step")), variablesOf(String(form.get("variables")))).then(done)}>
          <StepField steps={tasks} />
          <VariablesField />
        </Dialog>
      )}
      {asked === "again" && (
        <WithVariables id={instance.id} mark={undefined}>
          {(whole) => <StartDialog definitionId={instance.definitionId} variables={whole.variables} close={close} />}
        </WithVariables>
      )}
    </header>
  );
}

function SignalDialog({ id, steps, open, close, done }: { id: string; steps: Definition["steps"]; open: string[]; close: () => void; done: () => Promise<void> }) {
  const [key] = useState(newKey);
  return (
    <Dialog title="Send a signal" verb="Send" close={close} act={(form) => {
        const step = String(form.get("step"));
        return engine.signal(id, step, variablesOf(String(form.get("variables"))), key, !open.includes(step)).then(done);
      }}
    >
      <StepField steps={steps} note={(id) => (open.includes(id) ? " (waits now)" : " (kept until it waits)")} />
      <VariablesField />
    </Dialog>
  );
}

function StepField({ steps, note }: { steps: Definition["steps"]; note?: (id: string) => string }) {
  return (
    <div className="field">
      <label htmlFor="step">Step</label>
      <select id="step" name="step" className="in">
        {steps.map((step) => (
          <option key={step.id} value={step.id}>
            {step.name || step.id}
            {note?.(step.id)}
          </option>
        ))}
      </select>
    </div>
  );
}

const CHILDREN_SHOWN = 5;

function Facts({ instance, childIds }: { instance: InstanceSummary; childIds: string[] }) {
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
          <dt>{instance.status === "FAILED" ? "Failed" : instance.status === "CANCELLED" ? "Cancelled" : "Ended"}</dt>
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
      {childIds.length > 0 && (
        <div>
          <dt>Started by it</dt>
          <dd>
            {childIds.slice(0, CHILDREN_SHOWN).map((id) => (
              <Link key={id} href={`/instances/${encodeURIComponent(id)}`}>
                <code>{id}</code>{" "}
              </Link>
            ))}
            {childIds.length > CHILDREN_SHOWN && `and ${childIds.length - CHILDREN_SHOWN} more`}
          </dd>
        </div>
      )}
    </dl>
  );
}

const LOOKS: Record<string, string> = { failed: "fail", "no-worker": "fail", retries: "wait", "waits-for-person": "wait", "waits-for-signal": "wait", "waits-for-message": "wait", "waits-for-time": "wait" };

/** In one sentence why it stands where it stands: the engine's. */
function WhyLine({ why, instance, signals }: { why: Why; instance: InstanceSummary; signals: number }) {
  if (why.code === "completed") return null;
  return (
    <div className={`why ${LOOKS[why.code] ?? "run"}`} role="status">
      <div>
        <b>{why.text}</b>
        {why.next !== undefined && (
          <p>
            Next <At at={why.next} />
          </p>
        )}
        {signals > 0 && (
          <p>
            {signals.toLocaleString("en")} {signals === 1 ? "signal is" : "signals are"} kept for later
          </p>
        )}
        {instance.status === "FAILED" && instance.failureReason !== undefined && <Alike filter={{ status: "FAILED", definitionId: instance.definitionId, cause: instance.failureReason.slice(0, CAUSE_MAX_CHARS) }} />}
      </div>
      {why.code === "failed" && (
        <CopyButton text={() => why.text}>Copy error</CopyButton>
      )}
    </div>
  );
}

/** What the engine takes as the text of a cause. */
const CAUSE_MAX_CHARS = 1_000;

/** The others that failed for the same reason, counted by an index. */
function Alike({ filter }: { filter: { status: "FAILED"; definitionId: string; cause: string } }) {
  const counted = useQuery({ queryKey: ["instances", "count", filter], queryFn: ({ signal }) => engine.countInstances(filter, signal), staleTime: 10_000, retry: false });
  const others = (counted.data?.count ?? 0) - 1;
  if (others < 1) return null;
  return (
    <p>
      <Link href={`/instances?${new URLSearchParams(filter)}`}>
        {counted.data!.exact ? "" : "More than "}
        {others.toLocaleString("en")} other {others === 1 ? "instance" : "instances"} failed with this
      </Link>
    </p>
  );
}

const TIMER_WORDS: Record<string, string> = { boundary: "boundary event", retry: "next attempt", wait: "end of the wait", wake: "the run goes on" };

function Timers({ timers, definition, open }: { timers: InstanceState["timers"]; definition: Definition | undefined; open: boolean }) {
  const now = useNow();
  const names = new Map(definition?.steps.map((step) => [step.id, step.name]));
  const name = (step: string) => names.get(step) || step;
  if (timers.length === 0)
    return (
      <Empty title="No timer is armed">
        <p>{open ? "Nothing happens here by itself: boundary events, retries and waits with a time would be listed." : "It has ended, and its timers with it."}</p>
      </Empty>
    );
  return (
    <table>
      <thead>
        <tr>
          <th>Step</th>
          <th>What</th>
          <th className="r">Fires in</th>
        </tr>
      </thead>
      <tbody>
        {timers.map((timer, at) => (
          // biome-ignore lint: a step may have several timers for the same moment
          <tr key={at}>
            <td>{name(timer.stepId)}</td>
            <td>
              {TIMER_WORDS[timer.kind] ?? timer.kind}
              {timer.target !== undefined && `, goes to ${name(timer.target)}`}
            </td>
            <td className="r" title={bothZones(timer.fireAt)}>
              {Date.parse(timer.fireAt) > now ? duration(Date.parse(timer.fireAt) - now) : "due"}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function TimelineTab({ history, definition, selected, select }: { history: Execution[]; definition: Definition | undefined; selected: string | undefined; select: (id: string | undefined) => void }) {
  const now = useNow();
  const open = history.some((entry) => entry.endedAt === undefined);
  const until = open ? now : 0;
  const timeline = useMemo(() => timelineOf(history, until), [history, until]);
  const names = new Map(definition?.steps.map((step) => [step.id, step.name]));
  if (history.length === 0)
    return (
      <Empty title="Nothing has run yet">
        <p>Every execution of a step and every attempt will have a row here.</p>
      </Empty>
    );
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
      {entry.failureReason !== undefined && (
        <p className="mono refused">
          {entry.errorCode !== undefined && <b>{entry.errorCode} </b>}
          {entry.failureReason}
        </p>
      )}
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

function Variables({ variables, changed = [] }: { variables: Record<string, unknown>; changed?: string[] }) {
  const [word, setWord] = useState("");
  const rows = useMemo(() => Object.entries(variables).map(([name, value]): [string, string] => [name, JSON.stringify(value, null, 2)]).sort(([a], [b]) => a.localeCompare(b)), [variables]);
  const shown = rows.filter(([name, text]) => word === "" || name.includes(word) || text.includes(word));
  if (rows.length === 0)
    return (
      <Empty title="This instance has no variables">
        <p>It was started without, and no step has written any.</p>
      </Empty>
    );
  return (
    <>
      <div className="vtools">
        <input aria-label="Search variables" placeholder="Search variables" className="in" value={word} onChange={(event) => setWord(event.target.value)} />
        <CopyButton text={() => JSON.stringify(variables, null, 2)}>Copy all</CopyButton>
      </div>
      <dl className="vars">
        {shown.map(([name, text]) => (
          <div key={name}>
            <dt className="mono">
              {name}
              {changed.includes(name) && <span className="tag">written here</span>}
            </dt>
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
      <table className="wide">
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
