// Acts on many instances: what they would meet first, then their progress, which outlives this page.
import { keepPreviousData, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { Link } from "wouter";
import { type BulkAction, type BulkPreview, type BulkRequest, engine } from "../api/client";
import { variablesOf } from "../parts/dialog";
import { Icon } from "../parts/icons";
import { CopyId } from "../parts/copy";
import { JsonField } from "../parts/jsonfield";
import { More } from "../parts/list";
import { Empty, Problem, Skeleton } from "../parts/states";
import { Ago } from "../parts/time";
import { count, Progress, VERBS } from "./bulkrunning";
import { ruleOf, type TimerRule, TimerRuleField } from "./timerrule";

const MENDING: [BulkAction, string][] = [
  ["skip", "Skip a step"],
  ["move", "Move them"],
  ["migrate", "To another version"],
  ["edit", "Change variables"],
];
const REFRESH_MS = 1_000;
/** Of more the number is typed, but for a retry, which takes nothing away. */
const TYPED_ABOVE = 100;
/** Of so many the engine tells causes and steps. */
const SUMMED_MAX = 1_000;
const REFUSALS_SHOWN = 20;
/** Of so many versions the steps are read. */
const VERSIONS_READ = 10;

/** Which instances: those of a filter, or those that were ticked. */
export type Chosen = Pick<BulkRequest, "filter" | "ids">;

interface PaneProps {
  action: BulkAction;
  /** Another way to mend them. */
  ask: (action: BulkAction) => void;
  chosen: Chosen;
  /** Of which all of them are, where that is known: then versions and steps are picked. */
  definitionId?: string | undefined;
  /** It goes to the engine: what was chosen stays so until there is an answer. */
  send: (request: BulkRequest, text: string) => Promise<Outcome>;
  close: () => void;
}

/** What the engine said to an operation, of which `text` tells what it does to how many. */
export interface Outcome {
  text: string;
  /** None: it was refused. */
  id?: string;
  refused?: string;
}

export function BulkPane({ action, ask, chosen, definitionId, send, close }: PaneProps) {
  const [mapped, setTarget] = useState<Target>({});
  const [rule, setRule] = useState<TimerRule>("FROM_ENTRY");
  const target = { ...mapped, ...ruleOf(rule) };
  const [refused, setRefused] = useState<string>();
  const [busy, setBusy] = useState(false);
  const [cause, setCause] = useState<string>();
  const pane = useRef<HTMLElement>(null);
  useEffect(() => {
    pane.current?.scrollIntoView({ block: "nearest" }); // above the list on a narrow screen
  }, []);
  const filter = cause === undefined || !chosen.filter ? chosen.filter : { ...chosen.filter, cause };
  const wanted: Chosen = filter ? { filter } : chosen;
  // Steps are asked for below; how many it would meet does not depend on them. Whom a migration refuses depends on its version.
  const counted = action === "migrate" ? { action, ...target } : { action: "cancel" as const };
  const preview = useQuery({
    queryKey: ["bulk", "preview", counted, wanted],
    queryFn: ({ signal }) => engine.previewBulk({ ...counted, ...wanted }, signal),
    placeholderData: keepPreviousData,
    retry: false,
  });
  // What a migration is refused for as a whole is told beside its fields, which mend that.
  const refusedWhole = action === "migrate" && preview.error !== null;
  const found = preview.data ? { byCause: [], byStep: [], ...preview.data } : refusedWhole ? { count: 0, exact: true, byCause: [], byStep: [] } : undefined;
  const typed = found !== undefined && action !== "retry" && found.count > TYPED_ABOVE;
  const number = found && !refusedWhole ? `${found.exact ? "" : "> "}${count(found.count)}` : "…";
  const text = `${VERBS[action]} ${number} ${found?.count === 1 ? "instance" : "instances"}`;
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const field = (name: string) => String(form.get(name) ?? "").trim();
    setBusy(true);
    setRefused(undefined);
    try {
      if (found && typed && field("typed") !== String(found.count)) throw new Error(`Type ${found.count} to go on`);
      const request: BulkRequest = {
        action,
        ...wanted,
        ...(Number(field("rate")) > 0 && { perSecond: Number(field("rate")) }),
        ...(field("note") && { note: field("note") }),
        ...(action in STEP_WORDS && { stepId: field("step") }),
        ...(WITH_VARIABLES.has(action) && { variables: variablesOf(field("variables")) }),
        ...(action === "move" && { toStepId: field("to") }),
        ...(action === "retry" && field("from") && { fromStepId: field("from") }),
        ...(action === "migrate" && target),
        ...(action === "edit" && { remove: field("remove").split(/[\s,]+/).filter(Boolean) }),
      };
      setRefused((await send(request, text)).refused);
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
        <button type="button" className="iconbtn" aria-label="Close" disabled={busy} onClick={close}>
          <Icon name="close" />
        </button>
      </h2>
      {preview.error && !preview.data && !refusedWhole ? (
        <Problem error={preview.error} retry={() => preview.refetch()} />
      ) : !found ? (
        <Skeleton rows={3} />
      ) : (
        <form onSubmit={submit}>
          {MENDING.some(([one]) => one === action) && (
            <div className="seg ways" role="group" aria-label="How">
              {MENDING.map(([one, word]) => (
                <button key={one} type="button" aria-pressed={action === one} disabled={busy} onClick={() => ask(one)}>
                  {word}
                </button>
              ))}
            </div>
          )}
          <p className="big">{number}</p>
          <p className="mute">{found.exact ? "instances match now, counted exactly" : "instances match now; more than were counted"}. Those that start meanwhile are left out.</p>
          {found.byCause.length + found.byStep.length > 0 && found.count > SUMMED_MAX && <p className="mute">Of the first {count(SUMMED_MAX)} of them:</p>}
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
          <StepFields action={action} steps={found.byStep.map((one) => one.stepId)} />
          {action === "migrate" && <TargetFields definitionId={definitionId} choose={setTarget} />}
          {action === "migrate" && <TimerRuleField rule={rule} choose={setRule} due={{ [rule]: preview.isPlaceholderData ? undefined : preview.data?.refusals?.timersDue }} />}
          {refusedWhole && <Problem error={preview.error} retry={() => preview.refetch()} />}
          {preview.data?.refusals && <Refusals of={preview.data.refusals} />}
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
          {typed && (
            <div className="field">
              <label htmlFor="bulk-typed">Type {found.count} to confirm</label>
              <input id="bulk-typed" name="typed" className="in" inputMode="numeric" autoComplete="off" autoFocus required />
            </div>
          )}
          {refused !== undefined && (
            <p className="refused" role="alert">
              {refused}
            </p>
          )}
          <button type="submit" className={`btn ${action === "cancel" ? "bad" : "pri"}`} disabled={busy || found.count === 0 || preview.isPlaceholderData}>
            {busy ? "Beginning…" : text}
          </button>
        </form>
      )}
    </section>
  );
}

/** Of actions that are about a step: what it is to them. */
const STEP_WORDS: Partial<Record<BulkAction, string>> = { signal: "Step that waits", skip: "Step that counts as done", move: "Step on which they stand" };

const WITH_VARIABLES = new Set<BulkAction>(["signal", "skip", "edit"]);

function StepFields({ action, steps }: { action: BulkAction; steps: string[] }) {
  const word = STEP_WORDS[action];
  return (
    <>
      <datalist id="bulk-steps">
        {steps.map((step) => (
          <option key={step} value={step} />
        ))}
      </datalist>
      {word !== undefined && <TextField name="step" label={word} list="bulk-steps" required />}
      {action === "move" && <TextField name="to" label="Step at which they go on" required />}
      {action === "retry" && <TextField name="from" label="Step at which they go on; empty: where each failed" />}
      {action === "edit" && <TextField name="remove" label="Variables to take out, with commas between them" />}
      {WITH_VARIABLES.has(action) && (
        <JsonField key={action} label={action === "edit" ? "Variables to set, as a JSON object" : "Variables, as a JSON object"} name="variables" />
      )}
    </>
  );
}

function TextField({ name, label, ...input }: { name: string; label: string; list?: string; required?: boolean }) {
  return (
    <div className="field">
      <label htmlFor={`bulk-${name}`}>{label}</label>
      <input id={`bulk-${name}`} name={name} className="in mono" maxLength={256} autoComplete="off" {...input} />
    </div>
  );
}

/** To which version, with the steps that are called otherwise there. */
type Target = Pick<BulkRequest, "version" | "steps">;

/** Of one definition versions and steps are picked; of others they are written. */
function TargetFields({ definitionId, choose }: { definitionId: string | undefined; choose: (target: Target) => void }) {
  return definitionId === undefined ? <WrittenTarget choose={choose} /> : <PickedTarget definitionId={definitionId} choose={choose} />;
}

/** Each step that the version lacks, whichever version it is of, can become one that it has. */
function PickedTarget({ definitionId, choose }: { definitionId: string; choose: (target: Target) => void }) {
  const versions = useQuery({ queryKey: ["versions", definitionId, "choose"], queryFn: ({ signal }) => engine.versions(definitionId, "", signal) });
  const [version, setVersion] = useState<number>();
  const [steps, setSteps] = useState<Record<string, string>>({});
  const latest = versions.data?.items[0]?.version;
  const to = version ?? latest;
  const others = (versions.data?.items ?? []).map((one) => one.version).filter((one) => one !== to).slice(0, VERSIONS_READ);
  const found = useQuery({
    queryKey: ["definitions of versions", definitionId, to, others],
    queryFn: ({ signal }) => Promise.all([to!, ...others].map((one) => engine.definition(definitionId, one, signal))),
    enabled: to !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
  });
  const [target, ...before] = found.data ?? [];
  const known = new Set(target?.steps.map((step) => step.id));
  const gone = [...new Set(before.flatMap((one) => one.steps.map((step) => step.id)))].filter((id) => !known.has(id));
  const pick = (next: Target) => choose({ ...(next.version !== undefined && { version: next.version }), ...(Object.keys(next.steps ?? {}).length > 0 && { steps: next.steps! }) });
  return (
    <>
      <div className="field">
        <label htmlFor="bulk-version">To version</label>
        <select
          id="bulk-version"
          className="in"
          value={version ?? ""}
          onChange={(event) => {
            const next = Number(event.target.value) || undefined;
            setVersion(next);
            setSteps({});
            pick({ ...(next !== undefined && { version: next }) });
          }}
        >
          <option value="">the latest of now{latest !== undefined && `, ${latest}`}</option>
          {versions.data?.items.map((one) => (
            <option key={one.version} value={one.version}>
              version {one.version}
            </option>
          ))}
        </select>
      </div>
      {target !== undefined &&
        gone.map((id) => (
          <div className="field" key={id}>
            <label htmlFor={`bulk-becomes-${id}`}>{id} becomes</label>
            <select
              id={`bulk-becomes-${id}`}
              className="in"
              value={steps[id] ?? ""}
              onChange={(event) => {
                const { [id]: _, ...rest } = steps;
                const next = event.target.value ? { ...rest, [id]: event.target.value } : rest;
                setSteps(next);
                pick({ ...(version !== undefined && { version }), steps: next });
              }}
            >
              <option value="">none: it is not in that version</option>
              {target.steps.map((step) => (
                <option key={step.id} value={step.id}>
                  {step.name || step.id}
                </option>
              ))}
            </select>
          </div>
        ))}
    </>
  );
}

/** What is written takes effect when it is left: then it is looked anew who can be migrated. */
function WrittenTarget({ choose }: { choose: (target: Target) => void }) {
  const [reason, setReason] = useState<string>();
  const box = useRef<HTMLDivElement>(null);
  const left = () => {
    const text = (name: string) => box.current!.querySelector<HTMLInputElement>(`[name=${name}]`)!.value.trim();
    try {
      const steps = variablesOf(text("steps")) as Record<string, string>;
      choose({ ...(text("version") && { version: Number(text("version")) }), ...(Object.keys(steps).length > 0 && { steps }) });
      setReason(undefined);
    } catch (error) {
      setReason((error as Error).message);
    }
  };
  return (
    <div ref={box} onBlur={left}>
      <div className="field">
        <label htmlFor="bulk-version">To version; empty: the latest of now</label>
        <input id="bulk-version" name="version" className="in" type="number" min="1" step="1" />
      </div>
      <div className="field">
        <label htmlFor="bulk-renamed">Steps that have another id there, as a JSON object</label>
        <input id="bulk-renamed" name="steps" className="in mono" defaultValue="{}" spellCheck={false} />
      </div>
      {reason !== undefined && (
        <p className="refused" role="alert">
          {reason}
        </p>
      )}
    </div>
  );
}

function Refusals({ of: { checked, refused, instances } }: { of: NonNullable<BulkPreview["refusals"]> }) {
  if (refused === 0) return <p role="status">{checked === 0 ? "None of them has that version." : `Of ${count(checked)} that were looked at all can be migrated.`}</p>;
  return (
    <div role="status">
      <p>
        <b>
          {count(refused)} of {count(checked)} that were looked at can't be migrated
        </b>
        ; they are left as they are.
      </p>
      <ul className="reasons">
        {instances.slice(0, REFUSALS_SHOWN).map((one) => (
          <li key={one.instanceId}>
            <Link href={`/instances/${encodeURIComponent(one.instanceId)}`}>
              <code>{one.instanceId}</code>
            </Link>
            : {one.reasons.join("; ")}
          </li>
        ))}
      </ul>
      {refused > REFUSALS_SHOWN && <p className="mute">and {count(refused - REFUSALS_SHOWN)} more</p>}
    </div>
  );
}

/** One operation, as long as it runs and afterwards. */
export function BulkOperationPage({ id }: { id: string }) {
  const found = useQuery({
    queryKey: ["bulk", id],
    queryFn: ({ signal }) => engine.bulk(id, signal),
    refetchInterval: (query) => (query.state.data?.state === "RUNNING" ? REFRESH_MS : (query.state.data?.outcome?.running ?? 0) > 0 ? 5 * REFRESH_MS : false),
  });
  if (found.error && !found.data) return <Problem error={found.error} retry={() => found.refetch()} />;
  if (!found.data) return <Skeleton rows={3} />;
  const { action, perSecond, stepId, details, createdAt, endedAt } = found.data;
  const filter = found.data.filter as Record<string, unknown>;
  const isFilter = !("ids" in filter);
  return (
    <>
      <div className="head">
        <h1>{VERBS[action as BulkAction] ?? action} many instances</h1>
        <span className="tag">{id}</span>
        <CopyId id={id} />
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
          {details && (
            <div>
              <dt>How</dt>
              <dd>{[details.fromStepId && `from ${details.fromStepId}`, details.toStepId && `to ${details.toStepId}`, details.version !== undefined && `to version ${details.version}`, Object.keys(details.steps ?? {}).length > 0 && JSON.stringify(details.steps), details.remove?.length && `without ${details.remove.join(", ")}`].filter(Boolean).join(", ")}</dd>
            </div>
          )}
          <div>
            <dt>How fast</dt>
            <dd>{perSecond === undefined ? "as fast as it goes" : `${perSecond} per second`}</dd>
          </div>
        </dl>
        <p className="mute">Instances that started after it began are not included. It goes on whatever happens to this page or to an engine.</p>
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
              Filter the <Link href="/instances">instances</Link>, then choose Retry, Cancel, Signal or Repair above the list.
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
