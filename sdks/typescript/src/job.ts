import { Later, NonRetryable, Retry, StepError, Stopped, textOf, WaitFor, type StopReason } from "./errors.js";
import { toJson } from "./json.js";
import type { Session, Subscription } from "./session.js";
import type { Registered } from "./worker.js";

/** A job as it comes from the engine. */
export interface JobData {
  id: string;
  jobType: string;
  instanceId: string;
  stepId: string;
  attempt: number;
  retriesRemaining: number;
  definitionId: string;
  definitionVersion: number;
  businessKey?: string;
  /** Give it to the systems that you call: the same in all attempts, also after a retry of the instance. */
  idempotencyKey: string;
  /** What an earlier attempt stored. */
  checkpoint?: any;
}

/** What a handler works on. */
export interface Job<V = Record<string, any>> extends JobData {
  variables: V;
  /** Aborted when the handler is to stop; `signal.reason.why` says why. */
  signal: AbortSignal;
  /** Stores a checkpoint for the next attempt, shows progress. Waits through outages. */
  report(what: { checkpoint?: unknown; progress?: unknown }): Promise<void>;
}

export type ReportKind = "complete" | "fail" | "park" | "release";

/** What is to be reported about a job. */
export interface Report {
  held?: HeldJob;
  kind: ReportKind;
  jobId: string;
  attempt: number;
  /** JSON text of an object. */
  variables?: string;
  retryable?: boolean;
  errorMessage?: string;
  errorCode?: string;
  retryAfterMs?: number;
  stackTrace?: string;
  until?: Date;
  signal?: string;
  faults?: number;
}

const MAX_ERROR_CHARS = 4096;
const MAX_STACK_CHARS = 16_384;
const MAX_RETRY_PAUSE_MS = 2 ** 31 - 1; // what a message holds
const DEAF_AFTER_MS = 10_000;
// An error text must never be the reason that a report is refused.
const wellFormed = (text: string) => Buffer.from(text.replaceAll("\0", "\uFFFD"), "utf8").toString("utf8");

function stackOf(error: unknown): string | undefined {
  try {
    const { stack } = error as Error;
    return typeof stack === "string" ? wellFormed(stack.slice(-MAX_STACK_CHARS)) : undefined;
  } catch {
    return undefined; // a getter of the user's
  }
}

/** A job that this worker holds, from its coming until its result is settled. */
export class HeldJob {
  readonly abort = new AbortController();
  readonly receivedAt = Date.now();
  leaseEndsAt: number;
  begun = false;
  settled = false;

  constructor(
    private readonly session: Session,
    readonly job: JobData & { variables: any },
    readonly subscription: Subscription,
  ) {
    this.leaseEndsAt = Date.now() + session.settings.leaseSeconds * 1000;
  }

  get key(): string {
    return `${this.job.id}/${this.job.attempt}`;
  }

  get stopReason(): StopReason | undefined {
    return this.abort.signal.aborted ? (this.abort.signal.reason as Stopped).why : undefined;
  }

  stop(why: StopReason): void {
    if (!this.abort.signal.aborted) this.abort.abort(new Stopped(why));
  }

  /** Runs the handler. What is to be reported; undefined when nothing is. */
  async run({ handler, options }: Registered): Promise<Report | undefined> {
    const timer = options.timeoutMs ? setTimeout(() => this.stop("deadline"), options.timeoutMs) : undefined;
    let deaf: NodeJS.Timeout | undefined;
    this.abort.signal.addEventListener("abort", () => {
      if (!ended) deaf = setTimeout(() => this.session.warnOfDeafness(this), DEAF_AFTER_MS).unref();
    });
    let variables: string | undefined;
    let failed: unknown;
    let finished = false;
    let ended = false;
    try {
      const made = await handler(this.offered(options.parse));
      if (made !== undefined && made !== null) variables = this.textOf(made);
      finished = true;
    } catch (error) {
      failed = error;
    } finally {
      clearTimeout(timer);
      clearTimeout(deaf);
      ended = true;
    }
    const why = this.stopReason;
    if (why === "lease-lost" || why === "cancelled") return undefined;
    if (finished) return { ...this.ref("complete"), variables };
    if (why === "deadline") return this.failure(`not finished within its time limit of ${options.timeoutMs} ms`, true);
    return why === undefined ? this.failureOf(failed) : undefined;
  }

  failure(message: string, retryable: boolean): Report {
    return { ...this.ref("fail"), retryable, errorMessage: wellFormed(message.slice(0, MAX_ERROR_CHARS)) };
  }

  private offered(parse?: (variables: any) => any): Job<any> {
    const { job } = this;
    let variables = job.variables;
    if (parse)
      try {
        variables = parse(variables);
      } catch (error) {
        throw new NonRetryable(`the variables do not fit: ${textOf(error)}`);
      }
    return {
      ...job,
      variables,
      signal: this.abort.signal,
      report: (what) => this.session.report(this, what),
    };
  }

  private textOf(made: unknown): string {
    try {
      const text = toJson(made);
      if (!text.startsWith("{")) throw new TypeError("it is no object");
      return text;
    } catch (error) {
      throw new NonRetryable(`the result has no JSON form: ${textOf(error)}`);
    }
  }

  private failureOf(error: unknown): Report {
    if (error instanceof StepError) {
      const made = { ...this.failure(error.message, error.options.retryable ?? true), errorCode: error.code };
      try {
        return error.options.variables ? { ...made, variables: toJson(error.options.variables) } : made;
      } catch (wrong) {
        return this.failure(textOf(wrong), false);
      }
    }
    if (error instanceof NonRetryable) return { ...this.failure(error.message, false), stackTrace: stackOf(error) };
    if (error instanceof Later) return this.parked(error.until);
    if (error instanceof WaitFor) return this.parked(error.options.until, error.signal);
    if (error instanceof Retry) {
      const retryAfterMs = Math.min(Math.max(Number(error.options.afterMs) || 0, 0), MAX_RETRY_PAUSE_MS);
      return { ...this.failure(error.message, true), retryAfterMs };
    }
    return { ...this.failure(textOf(error), true), stackTrace: stackOf(error) };
  }

  private parked(until?: Date, signal?: string): Report {
    return { ...this.ref("park"), until, signal };
  }

  private ref(kind: ReportKind): Report {
    return { held: this, kind, jobId: this.job.id, attempt: this.job.attempt };
  }
}
