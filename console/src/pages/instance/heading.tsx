// What an instance is, and what may be done with it.
import { useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { Link } from "wouter";
import { type Definition, engine, isCode, type InstanceState, type InstanceSummary, newKey, type UserTask } from "../../api/client";
import { useShortcuts } from "../../keyboard";
import { CopyButton, CopyId } from "../../parts/copy";
import { Dialog, NoteField, VariablesField, variablesOf } from "../../parts/dialog";
import { Icon } from "../../parts/icons";
import { InstanceStatusBadge } from "../../parts/status";
import { Ago, duration } from "../../parts/time";
import { useCan } from "../../session";
import { EditDialog } from "../edit";
import { StartDialog } from "../start";
import { CompleteDialog } from "./complete";
import { MendDialog, Steps } from "./mend";
import { StepField } from "./stepfield";
import { WithVariables } from "./variables";

type Asked = "retry" | "mend" | "cancel" | "signal" | "complete" | "again" | "edit";

export function Heading({ state, definition }: { state: InstanceState; definition: Definition | undefined }) {
  const { instance } = state;
  const [asked, setAskedNow] = useState<Asked>();
  const [told, setTold] = useState<string>();
  const [tasksNow, setTasks] = useState<UserTask[]>([]);
  const setAsked = (next: Asked | undefined) => {
    if (next !== undefined) setTold(undefined);
    setAskedNow(next);
  };
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
  // A durable run decides itself where it goes on, and its arguments stay as they are.
  const isGraph = definition !== undefined && !isCode(definition);
  const mends = operates && (open || failed) && isGraph;
  useShortcuts(useMemo(() => (failed ? { r: () => setAsked("retry") } : {}), [failed]));
  const done = async () => {
    await queries.invalidateQueries({ queryKey: ["state", instance.id] });
    await queries.invalidateQueries({ queryKey: ["instance", instance.id] });
    await queries.invalidateQueries({ queryKey: ["history", instance.id] });
    await queries.invalidateQueries({ queryKey: ["audit", instance.id] });
  };
  const saved = async (changed: boolean, retried: boolean) => {
    if (changed) await done();
    setTold(changed ? `The variables are saved.${retried ? " It goes on." : ""}` : retried ? "It goes on with the variables that it had." : "Nothing was changed.");
  };
  const close = () => setAsked(undefined);
  const askWhich = async () => {
    try {
      const { items } = await engine.tasksOf(instance.id);
      setTasks(items);
      if (items.length > 0) return setAsked("complete");
      setTold("No task is open any more.");
      await done();
    } catch (error) {
      setTold((error as Error).message);
    }
  };
  return (
    <header className="ihead">
      <div className="head">
        <h1>{definition?.name || instance.definitionId}</h1>
        <InstanceStatusBadge status={instance.status} blocked={instance.blocked} />
        <span className="tag">{instance.id}</span>
        <CopyButton text={() => instance.id}>Copy id</CopyButton>
        <div className="act">
          {!open && operates && (
            <button type="button" className="btn" onClick={() => setAsked("again")}>
              Start again with these variables
            </button>
          )}
          {operates && isGraph && (instance.status === "FAILED" || instance.status === "WAITING") && (
            <button type="button" className="btn" onClick={() => setAsked("edit")}>
              Edit variables…
            </button>
          )}
          {mends && (
            <button type="button" className="btn" onClick={() => setAsked("mend")}>
              Repair…
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
            <button type="button" className="btn pri" onClick={() => void askWhich()}>
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
      {told !== undefined && (
        <p className="told" role="status">
          {told}
        </p>
      )}
      <Facts instance={instance} childIds={state.children} />
      {asked === "retry" && (
        <Dialog title="Retry this instance?" verb="Retry" close={close} act={(form) => engine.retry(instance.id, { note: String(form.get("note")).trim(), fromStepId: String(form.get("from") ?? "") }).then(done)}>
          <p>It goes on at the step that failed, with the variables it has and all its retries again.</p>
          {mends && (
            <div className="field">
              <label htmlFor="from">Go on at</label>
              <select id="from" name="from" className="in">
                <option value="">the step that failed</option>
                <Steps of={definition} />
              </select>
            </div>
          )}
          <NoteField />
        </Dialog>
      )}
      {asked === "mend" && mends && <MendDialog state={state} definition={definition} close={close} done={done} />}
      {asked === "cancel" && (
        <Dialog title="Cancel this instance?" verb="Cancel this instance" danger close={close} act={(form) => engine.cancel(instance.id, String(form.get("reason")).trim(), form.get("compensate") !== null).then(done)}>
          <p>Its open steps end, and workers stop. You can't undo this.</p>
          <div className="field">
            <label>
              <input type="checkbox" name="compensate" /> First undo what it did, where its steps say how
            </label>
          </div>
          <NoteField label="Reason, for the audit trail" name="reason" />
        </Dialog>
      )}
      {asked === "edit" && (
        <WithVariables id={instance.id} mark={undefined}>
          {(whole) => <EditDialog instance={whole} close={close} done={saved} retry={failed ? (note) => engine.retry(instance.id, { note }).finally(done) : undefined} />}
        </WithVariables>
      )}
      {asked === "signal" && <SignalDialog id={instance.id} steps={waits} open={instance.currentStepIds} close={close} done={done} />}
      {asked === "complete" && definition && <CompleteDialog definition={definition} tasks={tasksNow} close={close} done={done} />}
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
          <dt>Parent</dt>
          <dd>
            <Link href={`/instances/${encodeURIComponent(instance.parentInstanceId)}`}>
              <code>{instance.parentInstanceId}</code>
            </Link>{" "}
            <CopyId id={instance.parentInstanceId} />
          </dd>
        </div>
      )}
      {childIds.length > 0 && (
        <div>
          <dt>Child instances</dt>
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
