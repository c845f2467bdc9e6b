// The TypeScript worker and client as programs under test: sdks/conformance/README.md.
import { createInterface } from "node:readline";
import { writeSync } from "node:fs";
import { Client, fromJson, Later, NonRetryable, PenstockError, Retry, StepError, Stopped, toJson, WaitFor, Worker, type Job } from "../index.js";

const emit = (event: object) => writeSync(1, toJson(event) + "\n");

async function behave(job: Job): Promise<unknown> {
  const told = { job: job.id, attempt: job.attempt, instance: job.instanceId };
  emit({ event: "begin", type: job.jobType, idempotencyKey: job.idempotencyKey, ...told });
  try {
    const steps = job.variables.do;
    return await act(job, steps[Math.min(job.attempt, steps.length) - 1]);
  } catch (error) {
    if (job.signal.aborted) emit({ event: "stop", reason: (job.signal.reason as Stopped).why, ...told });
    throw error;
  } finally {
    emit({ event: "end", ...told });
  }
}

const wait = (seconds: number, signal?: AbortSignal) =>
  new Promise<void>((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
    if (signal?.aborted) reject(signal.reason);
  });

async function act(job: Job, step: any): Promise<unknown> {
  if (step.report) await job.report(step.report);
  switch (step.op) {
    case "complete":
      return step.variables;
    case "none":
      return undefined;
    case "echo":
      return { echo: job.variables.input };
    case "context": {
      const { variables, signal, report, checkpoint, ...context } = job;
      return { context };
    }
    case "checkpoint":
      return { saw: job.checkpoint ?? null };
    case "notJson":
      return { value: NaN };
    case "nul":
      return { text: "a\0b" };
    case "throw":
      throw new Error(step.message ?? "boom");
    case "fail":
      throw failureOf(step);
    case "sleep":
      await wait(step.seconds, job.signal);
      return step.variables ?? { slept: true };
    case "stubborn":
      await wait(step.seconds);
      return step.variables ?? { slept: true };
    case "later":
      throw new Later(new Date(Date.now() + step.seconds * 1000));
    case "waitFor":
      throw new WaitFor(step.signal, { until: step.seconds ? new Date(Date.now() + step.seconds * 1000) : undefined });
    case "worst":
      return worst(step.way);
    case "crash":
      process.kill(process.pid, "SIGKILL");
      return wait(60);
    default:
      throw new Error(`unknown op ${step.op}`);
  }
}

function worst(way: number): unknown {
  const refuse = () => {
    throw new Error("no text");
  };
  if (way === 1) throw undefined;
  if (way === 2) throw { toString: refuse, [Symbol.toPrimitive]: refuse, get stack() { return refuse(); } };
  if (way === 3) return { toJSON: refuse };
  throw Object.defineProperty(new NonRetryable("x"), "message", { get: refuse });
}

function failureOf({ message = "", code, variables, retryable = true, retryAfterSeconds }: any): Error {
  if (code) return new StepError(code, message, { variables, retryable });
  if (!retryable) return new NonRetryable(message);
  return new Retry(message, { afterMs: retryAfterSeconds && retryAfterSeconds * 1000 });
}

interface Order {
  name: string;
  count: number;
  tags: string[];
}

function parseOrder({ name, count, tags }: any): Order {
  if (typeof name !== "string") throw new TypeError("name is no text");
  if (!Number.isInteger(count)) throw new TypeError("count is no whole number");
  if (!Array.isArray(tags)) throw new TypeError("tags is no list");
  return { name, count, tags };
}

async function runWorker(): Promise<void> {
  const { jobTypes, ...options } = JSON.parse(process.env.CONFORMANCE_OPTIONS!);
  const worker = new Worker(process.env.PENSTOCK_URL!, options);
  for (const { type, handler, concurrency, timeoutSeconds } of jobTypes) {
    const limits = { concurrency, timeoutMs: timeoutSeconds && timeoutSeconds * 1000 };
    if (handler === "typed")
      worker.handle<Order>(type, ({ variables: v }) => ({ summary: `${v.name}:${v.count}:${v.tags.length}` }), { ...limits, parse: parseOrder });
    else worker.handle(type, handler === "nothing" ? () => undefined : behave, limits);
  }
  emit({ event: "ready" });
  await worker.runUntilSignal();
}

async function call(client: Client, { call: name, ...given }: any): Promise<unknown> {
  const { id, stepId, variables, limit, cursor, definitionId, status, businessKey, flowKey } = given;
  switch (name) {
    case "start":
      return client.start(given);
    case "get":
      return client.get(id, given);
    case "signal":
      return client.signal(id, stepId, variables, given);
    case "publish":
      return client.publish({ ...given, deliver: given.toAll ? "ALL" : undefined });
    case "cancel":
      return client.cancel(id, given.reason);
    case "retry":
      return client.retry(id, given);
    case "list":
      return client.list({ definitionId, status, businessKey, flowKey }, { limit, cursor });
    case "listAll": {
      const ids: string[] = [];
      for await (const each of client.all({ definitionId })) ids.push(each.id);
      return ids;
    }
    default:
      throw new Error(`unknown call ${name}`);
  }
}

async function runClient(): Promise<void> {
  const client = new Client(process.env.PENSTOCK_URL!);
  for await (const line of createInterface({ input: process.stdin })) {
    try {
      emit({ result: (await call(client, fromJson(line))) ?? null });
    } catch (error) {
      if (!(error instanceof PenstockError)) throw error;
      emit({ error: error.code, reason: error.reason });
    }
  }
}

await (process.argv[2] === "client" ? runClient() : runWorker()).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
