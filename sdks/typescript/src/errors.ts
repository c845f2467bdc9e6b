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
