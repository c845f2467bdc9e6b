/** What a call to the engine fails with. `code` is the engine's word: "not-found", "conflict", "throttled", … */
export class PenstockError extends Error {
  override name = "PenstockError";
  /** The pause that the engine asks for. */
  retryAfterMs?: number;

  constructor(
    readonly code: string,
    readonly reason: string,
    /** HTTP status; undefined when no answer was received. */
    readonly status?: number,
    /** Whether a request without an answer may have taken effect. */
    readonly maybeApplied = false,
  ) {
    super(`${code}: ${reason}`);
  }
}

/** Fails the job for good: the step and its instance fail with this message. */
export class NonRetryable extends Error {
  override name = "NonRetryable";
}

/** Fails the job; it is tried again, after the pause, while the step has retries left. */
export class Retry extends Error {
  override name = "Retry";
  constructor(message: string, readonly options: { afterMs?: number } = {}) {
    super(message);
  }
}

/**
 * Fails the job with a code that the workflow knows. An error boundary that names it takes it at once; otherwise it is
 * tried again while the step has retries left, unless `retryable` is false.
 */
export class StepError extends Error {
  override name = "StepError";
  constructor(
    readonly code: string,
    message = "",
    readonly options: { variables?: object; retryable?: boolean } = {},
  ) {
    super(message);
  }
}

/**
 * Gives the job back until a time: it comes again then, as the next attempt, with its checkpoint. No retry is spent, and
 * the worker is free meanwhile.
 */
export class Later extends Error {
  override name = "Later";
  constructor(readonly until: Date) {
    super(`waits until ${until.toISOString()}`);
  }
}

/**
 * Gives the job back until the instance gets a signal of this name (or one to the step), at longest `until` a time. What
 * the signal brings is among the variables of the next attempt.
 */
export class WaitFor extends Error {
  override name = "WaitFor";
  constructor(readonly signal: string, readonly options: { until?: Date } = {}) {
    super(`waits for the signal ${signal}${options.until ? ` until ${options.until.toISOString()}` : ""}`);
    if (!signal) throw new RangeError("a signal needs a name");
  }
}

/** Why a handler is to stop: the reason of its `job.signal`. */
export type StopReason = "lease-lost" | "cancelled" | "stopping" | "deadline";

/** What `job.signal` is aborted with. */
export class Stopped extends Error {
  override name = "AbortError";
  constructor(readonly why: StopReason) {
    super(why);
  }
}

export const isUnavailable = (error: unknown): boolean =>
  error instanceof PenstockError &&
  ["unavailable", "resource-exhausted", "connection-failed", "timed-out"].includes(error.code);

const TO_DO: Record<string, string> = {
  unauthenticated: "give the worker a token that the engine knows: the option `token`",
  forbidden: "give the caller of this token the permission to work",
  gone: "the engine dispatches jobs through Kafka, which this worker does not read",
  redirected: "give the worker the address that the redirect names",
};

/** The next step for a refusal that ends a worker. */
export const whatToDo = (error: unknown): string =>
  TO_DO[error instanceof PenstockError ? error.code : ""] ??
  "look whether the URL is the engine's, and whether the engine is as new as this worker";

/** Whether to ask for jobs again. A worker that was let in once waits for its token to be renewed. */
export const mayPass = (error: unknown, answered: boolean): boolean =>
  !(error instanceof PenstockError) ||
  isUnavailable(error) ||
  error.code === "internal-error" ||
  (answered && error.code === "unauthenticated");

export const textOf = (error: unknown): string => {
  try {
    return error instanceof Error ? `${error.name === "Error" ? "" : `${error.name}: `}${error.message}` : String(error);
  } catch {
    return "an error without a text";
  }
};
