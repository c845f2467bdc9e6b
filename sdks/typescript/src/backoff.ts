import { PenstockError } from "./errors.js";

const FIRST_MS = 100;
export const MAX_PAUSE_MS = 5000;

/** Pauses that double, each shortened by a random part of up to half. */
export class Backoff {
  private next = FIRST_MS;
  constructor(private readonly max = MAX_PAUSE_MS) {}

  pause(error?: unknown): number {
    const pause = this.next * (0.5 + Math.random() / 2);
    this.next = Math.min(this.next * 2, this.max);
    const asked = error instanceof PenstockError ? error.retryAfterMs : undefined;
    return asked ? Math.max(pause, Math.min(asked, 60_000) * (1 + Math.random() / 4)) : pause;
  }

  reset(): void {
    this.next = FIRST_MS;
  }
}

/** Waits; sooner when the signal is aborted, which is no error. */
export const sleep = (ms: number, signal?: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", done);
  });
