// What limits the jobs of some types, and what is started by the clock: made and changed here as by the command line.
import { useId, useState } from "react";
import { engine, type Queue, type QueuePolicy, type Schedule, type ScheduleSpec } from "../api/client";
import { textOf } from "../modeller/json";
import { Dialog, VariablesField, variablesOf } from "../parts/dialog";

interface FieldProps {
  name: string;
  label: string;
  value?: string | number | undefined;
  required?: boolean;
  number?: boolean;
  disabled?: boolean;
  placeholder?: string;
}

function Field({ name, label, value, number, ...more }: FieldProps) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <input id={id} name={name} className="in" defaultValue={value ?? ""} maxLength={1000} {...(number && { type: "number", min: 1, step: 1 })} {...more} />
    </div>
  );
}

function Choice({ name, label, value, of }: { name: string; label: string; value: string; of: Record<string, string> }) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <select id={id} name={name} className="in" defaultValue={value}>
        {Object.entries(of).map(([one, word]) => (
          <option key={one} value={one}>
            {word}
          </option>
        ))}
      </select>
    </div>
  );
}

const text = (form: FormData, name: string) => String(form.get(name) ?? "").trim();
const numberOf = (form: FormData, name: string) => (text(form, name) ? Number(text(form, name)) : undefined);
const listOf = (form: FormData, name: string, between: RegExp) =>
  text(form, name)
    .split(between)
    .map((one) => one.trim())
    .filter(Boolean);

/** Without what is undefined. */
function given<T extends object>(of: T): T {
  return Object.fromEntries(Object.entries(of).filter(([, value]) => value !== undefined)) as T;
}

/** `queue`: one that is changed. What has no field here stays as it is. */
export function QueueDialog({ queue, close, done }: { queue?: Queue | undefined; close: () => void; done: () => Promise<unknown> }) {
  const { paused: _, ...before } = queue?.policy ?? { jobTypes: [] };
  const rate = (form: FormData, name: string, was: QueuePolicy["rate"]) => {
    const limit = numberOf(form, name);
    return limit === undefined ? undefined : given({ ...was, limit, period: text(form, `${name}-period`) || "PT1S" });
  };
  const act = async (form: FormData) => {
    const policy: QueuePolicy = given({
      ...before,
      jobTypes: listOf(form, "types", /[\s,]+/),
      concurrency: numberOf(form, "concurrency"),
      concurrencyPerKey: numberOf(form, "per-key"),
      rate: rate(form, "rate", before.rate),
      ratePerKey: rate(form, "key-rate", before.ratePerKey),
      runs: numberOf(form, "runs"),
    }) as QueuePolicy;
    await engine.putQueue(queue?.name ?? text(form, "name"), policy);
    await done();
  };
  return (
    <Dialog title={queue ? `Change ${queue.name}` : "New queue"} verb={queue ? "Change" : "Make the queue"} close={close} act={act}>
      {!queue && <Field name="name" label="Name" required />}
      <Field name="types" label="Job types, with commas between them" value={before.jobTypes.join(", ")} />
      <Field name="concurrency" label="Concurrency; empty: no limit" value={before.concurrency} number />
      <Field name="per-key" label="Concurrency per key; empty: no limit" value={before.concurrencyPerKey} number />
      <Field name="rate" label="Jobs per period; empty: no limit" value={before.rate?.limit} number />
      <Field name="rate-period" label="Period, such as PT1S or PT1M" value={before.rate?.period} placeholder="PT1S" />
      <Field name="key-rate" label="Jobs per period and key; empty: no limit" value={before.ratePerKey?.limit} number />
      <Field name="key-rate-period" label="Period per key" value={before.ratePerKey?.period} placeholder="PT1S" />
      <Field name="runs" label="Open runs of durable workflows; empty: no limit" value={before.runs} number />
    </Dialog>
  );
}

const OVERLAPS = { SKIP: "Skip the new one", BUFFER_ONE: "One waits", BUFFER_ALL: "All wait", ALLOW: "They run together", CANCEL_OTHER: "Cancel the open one" };
const CATCH_UPS = { LAST: "Start the latest", ALL: "Start all", NONE: "Start none" };
const KEPT = ["definitionVersion", "businessKey", "anchor", "jitter", "startAt", "endAt", "catchUpWindow", "pauseOnFailure", "note", "priority", "flowKey"] as const;

/** `schedule`: one that is changed. What has no field here stays as it is. */
export function ScheduleDialog({ schedule, close, done }: { schedule?: Schedule | undefined; close: () => void; done: () => Promise<unknown> }) {
  const [how, setHow] = useState(schedule?.every === undefined ? "cron" : "every");
  const kept = Object.fromEntries(KEPT.flatMap((name) => (schedule?.[name] === undefined ? [] : [[name, schedule[name]]])));
  const act = async (form: FormData) => {
    const spec = given({
      ...kept,
      definitionId: text(form, "definition"),
      variables: variablesOf(String(form.get("variables"))),
      ...(how === "cron" ? { cron: listOf(form, "cron", /\n|;/), timeZone: text(form, "zone") || undefined } : { every: text(form, "every") }),
      overlap: text(form, "overlap"),
      catchUp: text(form, "catch-up"),
    }) as ScheduleSpec;
    await engine.putSchedule(schedule?.id ?? text(form, "id"), spec);
    await done();
  };
  return (
    <Dialog title={schedule ? `Change ${schedule.id}` : "New schedule"} verb={schedule ? "Change" : "Make the schedule"} close={close} act={act}>
      {!schedule && <Field name="id" label="Name" required />}
      <Field name="definition" label="Definition" value={schedule?.definitionId} required />
      <div className="seg ways" role="group" aria-label="When">
        {Object.entries({ cron: "By a calendar", every: "By an interval" }).map(([one, word]) => (
          <button key={one} type="button" aria-pressed={how === one} onClick={() => setHow(one)}>
            {word}
          </button>
        ))}
      </div>
      {how === "cron" ? (
        <>
          <Field name="cron" label="Cron, several with ; between them" value={schedule?.cron?.join("; ")} placeholder="0 2 * * *" required />
          <Field name="zone" label="Time zone; empty: UTC" value={schedule?.timeZone} placeholder="Europe/Berlin" />
        </>
      ) : (
        <Field name="every" label="Interval" value={schedule?.every} placeholder="PT15M" required />
      )}
      <Choice name="overlap" label="Overlap policy" value={schedule?.overlap ?? "SKIP"} of={OVERLAPS} />
      <Choice name="catch-up" label="Catch-up policy" value={schedule?.catchUp ?? "LAST"} of={CATCH_UPS} />
      <VariablesField initial={textOf(schedule?.variables ?? {}, true)} />
    </Dialog>
  );
}
