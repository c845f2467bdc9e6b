export * from "./client.js";
export { Later, NonRetryable, PenstockError, Retry, StepError, Stopped, WaitFor, type StopReason } from "./errors.js";
export type { Job, JobData } from "./job.js";
export { fromJson, toJson } from "./json.js";
export type { ConnectionOptions } from "./rest.js";
export { Worker, type Handler, type HandlerOptions, type Logger, type WorkerOptions } from "./worker.js";
