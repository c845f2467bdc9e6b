import { Backoff, sleep } from "./backoff.js";
import { isUnavailable, mayPass, PenstockError } from "./errors.js";
import type { JobData, Report, ReportKind } from "./job.js";
import { fromJson } from "./json.js";
import type { Rest } from "./rest.js";
import { CALL_LIMIT_MS, type Beat, type Outcome, type Session, type Subscription, type Wire } from "./session.js";

const HELD_POLL_MS = 500; // a poll that comes back empty sooner was not held: pause
const IDLE_MAX_MS = 1000;

/** Asks for jobs over REST, in polls that the engine holds until there is one. */
export class LongPoll implements Wire {
  constructor(private readonly session: Session, private readonly rest: Rest) {}

  close(): void {}

  async run(signal: AbortSignal): Promise<void> {
    const all = new AbortController();
    const stop = () => all.abort();
    signal.addEventListener("abort", stop);
    void this.watch(all.signal);
    try {
      const polls = this.session.subscriptions.map((each) => this.poll(each, all.signal));
      await Promise.all(polls);
      await this.session.until(() => signal.aborted, undefined, signal);
    } finally {
      signal.removeEventListener("abort", stop);
      all.abort();
    }
  }

  private async poll(subscription: Subscription, signal: AbortSignal): Promise<void> {
    const { session } = this;
    const { workerId, leaseSeconds, waitSeconds, logger } = session.settings;
    const asking = new AbortController();
    const off = session.onChange(() => session.draining && asking.abort());
    const outages = new Backoff();
    const idle = new Backoff(IDLE_MAX_MS);
    let answered = false;
    signal.addEventListener("abort", () => asking.abort());
    while (!asking.signal.aborted && !session.draining) {
      const room = session.room(subscription);
      if (room === 0) {
        await session.until(() => session.room(subscription) > 0 || session.draining, undefined, asking.signal);
        continue;
      }
      const asked = Date.now();
      const body = { workerId, jobTypes: subscription.types, maxJobs: room, leaseSeconds, waitSeconds };
      try {
        const timeoutMs = waitSeconds * 1000 + CALL_LIMIT_MS;
        const got = await this.rest.call({ method: "POST", path: "/v1/jobs/poll", body, timeoutMs, signal: asking.signal });
        if (!Array.isArray(got?.jobs)) throw new PenstockError("internal-error", "the answer to a poll has no jobs");
        answered = true;
        outages.reset();
        const ofUse = await this.accept(got.jobs as (JobData & { variables: any })[]);
        if (ofUse || Date.now() - asked >= HELD_POLL_MS) idle.reset();
        else await sleep(idle.pause(), asking.signal);
      } catch (error) {
        if (asking.signal.aborted) break;
        if (!mayPass(error, answered)) {
          off();
          throw error;
        }
        logger.warn(`no jobs from the engine: ${error}`);
        await sleep(outages.pause(error), asking.signal);
      }
    }
    off();
  }

  /** Whether any of the jobs was of use. */
  private async accept(jobs: (JobData & { variables: any })[]): Promise<boolean> {
    const real = jobs.filter((job) => typeof job?.id === "string" && Number.isSafeInteger(job.attempt));
    if (real.length < jobs.length) this.session.settings.logger.error("the engine sent what is no job: is it as new as this worker?");
    const back = real.filter((job) => !this.session.accept({ ...job, variables: job.variables ?? {} }));
    if (back.length)
      await this.send("release", back.map(({ id, attempt }) => ({ kind: "release", jobId: id, attempt })), CALL_LIMIT_MS).catch(() => {});
    return real.length > back.length;
  }

  /** Hears at once of jobs that are cancelled. Engines that don't tell leave it to the heartbeats. */
  private async watch(signal: AbortSignal): Promise<void> {
    const { workerId, waitSeconds } = this.session.settings;
    const pauses = new Backoff();
    while (!signal.aborted) {
      const asked = Date.now();
      try {
        const timeoutMs = waitSeconds * 1000 + CALL_LIMIT_MS;
        const got = await this.rest.call({ method: "POST", path: "/v1/jobs/lost", body: { workerId, waitSeconds }, timeoutMs, signal });
        for (const { jobId, attempt, outcome } of got?.lost ?? [])
          this.session.lose(jobId, attempt, outcome === "cancelled" ? "cancelled" : "lease-lost");
        if (got?.lost?.length || Date.now() - asked >= HELD_POLL_MS) pauses.reset();
        else await sleep(pauses.pause(), signal);
      } catch (error) {
        if (!mayPass(error, true)) return;
        await sleep(pauses.pause(error), signal);
      }
    }
  }

  async send(kind: ReportKind, items: Report[], timeoutMs: number): Promise<Outcome[]> {
    if (kind === "park") return Promise.all(items.map((each) => this.park(each, timeoutMs)));
    const told = items.map(({ jobId, attempt, variables, retryable, errorMessage, errorCode, retryAfterMs, stackTrace }) => ({
      jobId,
      attempt,
      retryable,
      errorMessage,
      errorCode,
      stackTrace,
      retryAfterSeconds: retryAfterMs ? retryAfterMs / 1000 : undefined,
      variables: variables === undefined ? undefined : fromJson(variables),
    }));
    return this.outcomes(kind, { [kind === "release" ? "jobs" : "results"]: told }, timeoutMs);
  }

  private async park({ jobId, attempt, until, signal }: Report, timeoutMs: number): Promise<Outcome> {
    const body = { workerId: this.session.settings.workerId, attempt, until, signal };
    try {
      await this.rest.call({ method: "POST", path: `/v1/jobs/${encodeURIComponent(jobId)}/park`, body, timeoutMs });
      return { jobId, outcome: "ok" };
    } catch (error) {
      const code = (error as PenstockError).code;
      if (["lease-lost", "cancelled", "not-found"].includes(code)) return { jobId, outcome: code };
      if (isUnavailable(error)) return { jobId, outcome: "unavailable" };
      if (code === "bad-request") return { jobId, outcome: "invalid", reason: String(error) };
      throw error;
    }
  }

  async beat(items: Beat[], timeoutMs: number): Promise<Outcome[]> {
    const jobs = items.map(({ checkpoint, progress, ...beat }) => ({
      ...beat,
      checkpoint: checkpoint === undefined ? undefined : fromJson(checkpoint),
      progress: progress === undefined ? undefined : fromJson(progress),
    }));
    return this.outcomes("heartbeat", { jobs }, timeoutMs);
  }

  private async outcomes(path: string, items: object, timeoutMs: number): Promise<Outcome[]> {
    const body = { workerId: this.session.settings.workerId, ...items };
    const got = await this.rest.call({ method: "POST", path: `/v1/jobs/${path}`, body, timeoutMs });
    if (!Array.isArray(got?.results)) throw new PenstockError("internal-error", "an answer without results", 200, true);
    return got.results as Outcome[];
  }
}
