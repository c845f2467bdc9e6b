import { Backoff, sleep } from "./backoff.js";
import { isUnavailable, PenstockError, whatToDo, type StopReason } from "./errors.js";
import { HeldJob, type JobData, type Report, type ReportKind } from "./job.js";
import type { Registered, Settings } from "./worker.js";
import { toJson } from "./json.js";

const CLEAN_UP_MS = 5000; // after the grace, for handlers that were told to stop
const LAST_CALLS_MS = 5000; // for the last results, and to give jobs back
const MAX_WAITING_MS = 5000; // a job that waits for its turn for longer goes back
const MAX_BATCH = 200;
const MAX_BEATS = 500;
const MAX_FAULTS = 8; // of a report that the engine stumbles over
const HEARTBEAT_LIMIT_MS = 10_000;
export const CALL_LIMIT_MS = 15_000;

export interface Outcome {
  jobId: string;
  outcome: string;
  reason?: string;
}

export interface Beat {
  jobId: string;
  attempt: number;
  leaseSeconds: number;
  /** JSON text. */
  checkpoint?: string;
  progress?: string;
}

/** A connection to the engine. Its calls may be repeated safely; each gives one outcome per item. */
export interface Wire {
  /** Brings jobs until the signal is aborted; throws for a refusal for good. */
  run(signal: AbortSignal): Promise<void>;
  send(kind: ReportKind, items: Report[], timeoutMs: number): Promise<Outcome[]>;
  beat(items: Beat[], timeoutMs: number): Promise<Outcome[]>;
  close(): void;
}

/** Job types that are asked for together: those without a limit of their own, or one with. */
export interface Subscription {
  types: string[];
  limit: number;
  active: number;
  running: number;
}

type Queued = "complete" | "fail" | "park";

/** One run of a worker. */
export class Session {
  readonly subscriptions: Subscription[] = [];
  draining = false;
  private readonly byType = new Map<string, Subscription>();
  private readonly held = new Map<string, HeldJob>();
  private readonly waiting: HeldJob[] = [];
  private active = 0;
  private running = 0;
  private queues: Record<Queued, Report[]> = { complete: [], fail: [], park: [] };
  private unreported = 0;
  private listeners = new Set<() => void>();
  private graceOver = false;
  private beatsFail = false;
  private readonly services = new AbortController();
  private hurry = new AbortController();
  private wire!: Wire;

  constructor(readonly settings: Settings, private readonly handlers: Map<string, Registered>) {
    const shared: Subscription = { types: [], limit: settings.concurrency, active: 0, running: 0 };
    for (const [type, { options }] of handlers) {
      const own = options.concurrency ? { types: [], limit: options.concurrency, active: 0, running: 0 } : shared;
      own.types.push(type as never);
      this.byType.set(type, own);
      if (own !== shared) this.subscriptions.push(own);
    }
    if (shared.types.length) this.subscriptions.push(shared);
  }

  async run(wire: Wire): Promise<void> {
    this.wire = wire;
    const source = new AbortController();
    let refusal: unknown;
    const bringing = wire.run(source.signal).catch((error: unknown) => {
      this.settings.logger.error(`the engine gives this worker no jobs: ${error}; to do: ${whatToDo(error)}`);
      refusal = error;
      if (!this.draining) this.drain();
    });
    const services = [this.deliver("complete"), this.deliver("fail"), this.deliver("park"), this.keepLeases(), this.returnWaiting()];
    this.settings.logger.info(`worker ${this.settings.workerId} takes ${[...this.byType.keys()].join(", ")}`);
    await this.until(() => this.draining);
    await this.finish();
    source.abort();
    await bringing;
    this.services.abort();
    this.notify();
    await Promise.all(services);
    this.settings.logger.info(`worker ${this.settings.workerId} has stopped`);
    if (refusal !== undefined) throw refusal;
  }

  drain(): void {
    if (this.draining) this.graceOver = true;
    this.draining = true;
    this.notify();
  }

  private async finish(): Promise<void> {
    await this.giveBack([...this.held.values()].filter((held) => !held.begun));
    await this.until(() => this.active === 0 || this.graceOver, this.settings.drainGraceSeconds * 1000);
    for (const held of this.held.values()) if (this.isRunning(held)) held.stop("stopping");
    await this.until(() => this.active === 0, CLEAN_UP_MS);
    await this.until(() => this.unreported === 0, LAST_CALLS_MS);
    if (this.unreported || this.active)
      this.settings.logger.error(
        `the engine did not take ${this.unreported} results, ${this.active} handlers go on: their jobs will be done again`,
      );
    await this.giveBack([...this.held.values()]);
  }

  private isRunning(held: HeldJob): boolean {
    return held.begun && !Object.values(this.queues).some((queue) => queue.some((each) => each.held === held));
  }

  // -- changes

  /** Calls back at each change of room or of what is held, until the returned function is called. */
  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  notify(): void {
    for (const each of [...this.listeners]) each();
  }

  until(holds: () => boolean, limitMs?: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const look = () => {
        if (!holds() && !signal?.aborted) return;
        done();
      };
      const done = () => {
        clearTimeout(timer);
        off();
        signal?.removeEventListener("abort", look);
        resolve();
      };
      const off = this.onChange(look);
      const timer = limitMs === undefined ? undefined : setTimeout(done, limitMs);
      signal?.addEventListener("abort", look);
      look();
    });
  }

  // -- jobs

  /** How many more jobs of a subscription the worker takes now. */
  room(subscription: Subscription): number {
    if (this.draining || this.unreported >= this.settings.maxUnreported) return 0;
    return Math.max(0, Math.min(this.settings.concurrency - this.active, subscription.limit - subscription.active));
  }

  /** Takes a job on. False when the worker has no use for it: it is to be given back. */
  accept(job: JobData & { variables: any }): boolean {
    const subscription = this.byType.get(job.jobType);
    if (!subscription || this.draining) return false;
    const held = new HeldJob(this, job, subscription);
    if (this.held.has(held.key)) return true; // it came twice
    this.held.set(held.key, held);
    this.active++;
    subscription.active++;
    this.waiting.push(held);
    this.beginWaiting();
    return true;
  }

  private beginWaiting(): void {
    for (let at = 0; at < this.waiting.length && this.running < this.settings.concurrency; ) {
      const held = this.waiting[at]!;
      if (!held.settled && held.subscription.running >= held.subscription.limit) {
        at++;
        continue;
      }
      this.waiting.splice(at, 1);
      if (held.settled) this.leave(held);
      else void this.work(held);
    }
  }

  private leave(held: HeldJob): void {
    this.active--;
    held.subscription.active--;
    this.notify();
  }

  private async work(held: HeldJob): Promise<void> {
    held.begun = true;
    this.running++;
    held.subscription.running++;
    const report = await held
      .run(this.handlers.get(held.job.jobType)!)
      .catch(() => held.failure("the handler ended with an error that cannot be read", true)); // a getter of the user's
    this.running--;
    held.subscription.running--;
    if (report && !held.settled) {
      if (report.kind === "fail") this.settings.logger.warn(`job ${report.jobId} failed: ${report.errorMessage}`);
      this.unreported++;
      this.put(report);
    }
    this.leave(held);
    this.beginWaiting();
  }

  /** Takes a job away that is not this worker's any more: its handler stops, and nothing is reported. */
  lose(jobId: string, attempt: number, why: StopReason): void {
    const held = this.held.get(`${jobId}/${attempt}`);
    if (!held) return;
    this.settings.logger.warn(`job ${jobId} lost: ${why}`);
    this.held.delete(held.key);
    held.settled = true;
    held.stop(why);
    this.beginWaiting();
    this.notify();
  }

  warnOfDeafness({ job, stopReason }: HeldJob): void {
    this.settings.logger.warn(
      `the handler of job ${job.id} (${job.jobType}) was told to stop (${stopReason}) and goes on; it keeps its slot: let it watch job.signal`,
    );
  }

  private async giveBack(jobs: HeldJob[]): Promise<void> {
    const items: Report[] = [];
    for (const held of jobs.filter((each) => !each.settled)) {
      held.settled = true;
      held.stop("stopping");
      this.held.delete(held.key);
      items.push({ kind: "release", jobId: held.job.id, attempt: held.job.attempt });
    }
    this.beginWaiting();
    for (let at = 0; at < items.length; at += MAX_BATCH)
      try {
        await this.wire.send("release", items.slice(at, at + MAX_BATCH), LAST_CALLS_MS);
      } catch (error) {
        this.settings.logger.warn(`jobs could not be given back, their leases will end: ${error}`);
        return;
      }
  }

  private async returnWaiting(): Promise<void> {
    const { signal } = this.services;
    while (!signal.aborted) {
      await sleep(MAX_WAITING_MS / 2, signal);
      await this.giveBack(this.waiting.filter((held) => Date.now() - held.receivedAt > MAX_WAITING_MS));
    }
  }

  // -- leases

  private get leaseMs(): number {
    return this.settings.leaseSeconds * 1000;
  }

  private async keepLeases(): Promise<void> {
    const { signal } = this.services;
    while (!signal.aborted) {
      await sleep(this.leaseMs / 12, AbortSignal.any([signal, this.hurry.signal]));
      if (this.hurry.signal.aborted) this.hurry = new AbortController();
      const left = (this.leaseMs * 2) / 3 + this.leaseMs / 12;
      const due = [...this.held.values()].filter((held) => held.leaseEndsAt - Date.now() <= left);
      for (let at = 0; at < due.length && !signal.aborted; at += MAX_BEATS) await this.extend(due.slice(at, at + MAX_BEATS));
    }
  }

  /** Asks for all leases at once, to learn which jobs were given to others. */
  renew(): void {
    for (const held of this.held.values()) held.leaseEndsAt = Date.now();
    this.hurry.abort();
  }

  private async extend(due: HeldJob[]): Promise<void> {
    const sentAt = Date.now();
    const items = due.map(({ job }) => ({ jobId: job.id, attempt: job.attempt, leaseSeconds: this.settings.leaseSeconds }));
    try {
      const outcomes = await this.wire.beat(items, Math.min(this.leaseMs / 3, HEARTBEAT_LIMIT_MS));
      due.forEach((held, at) => this.extended(held, outcomes[at], sentAt));
      this.beatsFail = false;
    } catch (error) {
      if (!this.beatsFail)
        this.settings.logger.warn(`heartbeats fail, others get ${due.length} jobs unless the engine answers within the lease: ${error}`);
      this.beatsFail = true;
    }
  }

  private extended(held: HeldJob, told: Outcome | undefined, sentAt: number): void {
    if (told?.outcome === "ok") held.leaseEndsAt = sentAt + this.leaseMs;
    else if (told?.outcome === "cancelled") this.lose(held.job.id, held.job.attempt, "cancelled");
    else if (told && ["lease-lost", "not-found", "already-completed"].includes(told.outcome))
      this.lose(held.job.id, held.job.attempt, "lease-lost");
  }

  async report(held: HeldJob, what: { checkpoint?: unknown; progress?: unknown }): Promise<void> {
    const beat: Beat = { jobId: held.job.id, attempt: held.job.attempt, leaseSeconds: this.settings.leaseSeconds };
    if (what.checkpoint !== undefined) beat.checkpoint = toJson(what.checkpoint);
    if (what.progress !== undefined) beat.progress = toJson(what.progress);
    const pauses = new Backoff();
    for (;;) {
      held.abort.signal.throwIfAborted();
      const sentAt = Date.now();
      try {
        const [told] = await this.wire.beat([beat], CALL_LIMIT_MS);
        this.extended(held, told, sentAt);
        held.abort.signal.throwIfAborted();
        if (told?.outcome !== "ok") throw new PenstockError(told?.outcome ?? "internal-error", told?.reason ?? "no outcome");
        return;
      } catch (error) {
        if (!isUnavailable(error)) throw error;
        await sleep(pauses.pause(error), held.abort.signal);
      }
    }
  }

  // -- results

  private put(report: Report): void {
    this.queues[report.kind as Queued].push(report);
    this.notify();
  }

  /** Sends results of one kind: those that came while the last batch was under way are the next one. */
  private async deliver(kind: Queued): Promise<void> {
    const { signal } = this.services;
    const pauses = new Backoff();
    for (;;) {
      await this.until(() => this.queues[kind].length > 0, undefined, signal);
      if (signal.aborted) return;
      const batch = this.queues[kind].splice(0, MAX_BATCH);
      const again: Report[] = [];
      const error = await this.exchange(kind, batch, again);
      this.queues[kind].unshift(...again);
      if (again.length) await sleep(pauses.pause(error), signal);
      else pauses.reset();
    }
  }

  /** Sends a batch, or its parts where it is refused as a whole. What is to be sent again is added to `again`. */
  private async exchange(kind: ReportKind, batch: Report[], again: Report[]): Promise<unknown> {
    try {
      const outcomes = await this.wire.send(kind, batch, CALL_LIMIT_MS);
      if (outcomes.length !== batch.length) throw new PenstockError("internal-error", "an answer without all outcomes");
      outcomes.forEach((told, at) => {
        if (told.outcome === "unavailable") again.push(batch[at]!);
        else this.settle(batch[at]!, told);
      });
      return undefined;
    } catch (error) {
      const code = error instanceof PenstockError ? error.code : "internal-error";
      if (isUnavailable(error) || code === "unauthenticated") {
        again.push(...batch);
        return error;
      }
      if (batch.length > 1) {
        const middle = batch.length >> 1;
        const first = await this.exchange(kind, batch.slice(0, middle), again);
        return (await this.exchange(kind, batch.slice(middle), again)) ?? first;
      }
      const item = batch[0]!;
      if (code === "internal-error" && (item.faults = (item.faults ?? 0) + 1) < MAX_FAULTS) again.push(item);
      else this.settle(item, { jobId: item.jobId, outcome: "invalid", reason: String(error) });
      return error;
    }
  }

  private settle(item: Report, told: Outcome): void {
    const held = item.held!;
    if (told.outcome === "invalid" && item.kind !== "fail") {
      this.settings.logger.error(`the engine refused the result of job ${item.jobId}: ${told.reason}`);
      return this.put(held.failure(`the engine refused the result: ${told.reason}`, false));
    }
    if (told.outcome === "invalid" && item.variables !== undefined) return this.put({ ...item, variables: undefined });
    if (told.outcome !== "ok" && told.outcome !== "already-completed")
      this.settings.logger.warn(`result of job ${item.jobId} not taken: ${told.outcome} ${told.reason ?? ""}`);
    this.held.delete(held.key);
    held.settled = true;
    this.unreported--;
    this.notify();
  }
}
