import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import type { Job } from "./job.js";
import { LongPoll } from "./longpoll.js";
import { Rest, type ConnectionOptions } from "./rest.js";
import { Session } from "./session.js";
import { WorkStream } from "./stream.js";

/** Does a job. What it returns, if anything an object, is merged into the instance's variables. */
export type Handler<V> = (job: Job<V>) => unknown;

export interface HandlerOptions<V> {
  /** Jobs of this type at once; the worker's own limit holds as well. */
  concurrency?: number;
  /** Of one attempt: then `job.signal` is aborted, and the job fails, may be tried again. */
  timeoutMs?: number;
  /** Makes the variables a type of yours, such as zod's `schema.parse`. What it throws fails the job for good. */
  parse?: (variables: any) => V;
}

export interface Logger {
  debug(message: string): void;
  info(message: string): void;
  warn(message: string): void;
  error(message: string): void;
}

export interface WorkerOptions extends ConnectionOptions {
  /** The holder of the leases, unique per running worker. */
  workerId?: string;
  /** Jobs worked on at once; 16. */
  concurrency?: number;
  /** 5 to 3600; 30. After it others get the jobs of a dead worker. */
  leaseSeconds?: number;
  /** How long the engine holds a poll; 20, at most 60. */
  waitSeconds?: number;
  /** How long handlers may go on after the stop; 20. */
  drainGraceSeconds?: number;
  /** With so many results that could not be delivered no new jobs are taken; 1000. */
  maxUnreported?: number;
  logger?: Logger;
}

export type Settings = Required<Omit<WorkerOptions, "token">>;

export interface Registered {
  handler: Handler<any>;
  options: HandlerOptions<any>;
}

const note = (level: string) => (message: string) => void process.stderr.write(`${new Date().toISOString()} ${level} ${message}\n`);
const LOGGER: Logger = { debug: () => {}, info: note("info"), warn: note("warn"), error: note("error") };

/** Takes jobs from an engine, runs their handlers, reports the results. */
export class Worker {
  private readonly handlers = new Map<string, Registered>();
  private readonly settings: Settings;
  private session: Session | undefined;

  /** `engine`: http:// or https:// for long polls, grpc:// or grpcs:// for the Work stream. */
  constructor(private readonly engine: string, private readonly options: WorkerOptions = {}) {
    if (!/^(https?|grpcs?):\/\/[^/]/.test(engine)) throw new TypeError(`not an http://, https://, grpc:// or grpcs:// URL: ${engine}`);
    this.settings = {
      workerId: options.workerId ?? `${hostname()}-${process.pid}-${randomUUID().slice(0, 8)}`,
      concurrency: options.concurrency ?? 16,
      leaseSeconds: options.leaseSeconds ?? 30,
      waitSeconds: options.waitSeconds ?? 20,
      drainGraceSeconds: options.drainGraceSeconds ?? 20,
      maxUnreported: options.maxUnreported ?? 1000,
      logger: options.logger ?? LOGGER,
    };
    const { concurrency, leaseSeconds } = this.settings;
    if (!(concurrency >= 1) || !(leaseSeconds >= 5 && leaseSeconds <= 3600))
      throw new RangeError("concurrency is at least 1, leaseSeconds 5 to 3600");
  }

  /** Registers the handler of a job type. */
  handle<V = Record<string, any>>(jobType: string, handler: Handler<V>, options: HandlerOptions<V> = {}): this {
    if (this.handlers.has(jobType)) throw new Error(`job type ${jobType} has a handler already`);
    this.handlers.set(jobType, { handler, options });
    return this;
  }

  /** Takes on no more jobs and ends when those held are done, within the grace. Again: ends the grace now. */
  stop(): void {
    this.session?.drain();
  }

  /**
   * Works until `stop` is called or the signal is aborted, then drains. Throws only when the engine refuses to give
   * jobs to this worker at all; an engine that is away is waited for.
   */
  async run({ signal }: { signal?: AbortSignal } = {}): Promise<void> {
    if (this.session) throw new Error("this worker is running already");
    if (!this.handlers.size) throw new Error("the worker has no handlers");
    const session = (this.session = new Session(this.settings, this.handlers));
    const wire = this.engine.startsWith("http")
      ? new LongPoll(session, new Rest(this.engine.replace(/\/+$/, ""), this.options))
      : new WorkStream(session, this.engine, this.options);
    const stop = () => session.drain();
    signal?.addEventListener("abort", stop);
    if (signal?.aborted) stop();
    try {
      await session.run(wire);
    } finally {
      signal?.removeEventListener("abort", stop);
      wire.close();
      this.session = undefined;
    }
  }

  /** `run` for a program that is only this worker: SIGTERM and SIGINT drain it, a second one ends the grace. */
  async runUntilSignal(): Promise<void> {
    const stop = () => this.stop();
    process.on("SIGTERM", stop).on("SIGINT", stop);
    try {
      await this.run();
    } finally {
      process.off("SIGTERM", stop).off("SIGINT", stop);
    }
  }
}
