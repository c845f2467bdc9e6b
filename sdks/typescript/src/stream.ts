import * as grpc from "@grpc/grpc-js";
import { Backoff, sleep } from "./backoff.js";
import { mayPass, PenstockError } from "./errors.js";
import { Outcome as Code, WorkerClient, WorkRequest, type Job as JobMessage, type WorkResponse } from "./generated/penstock/v1/worker.js";
import type { JobData, Report, ReportKind } from "./job.js";
import { fromJson } from "./json.js";
import { bearerOf, type ConnectionOptions } from "./rest.js";
import { type Beat, type Outcome, type Session, type Wire } from "./session.js";

const MESSAGE_BYTES = 1 << 20; // of results in one message of the stream; what is larger goes as a call of its own
const MAX_MESSAGE = 64 << 20;
const MAX_CREDIT = 10_000;

const OUTCOMES: Record<number, string> = {
  [Code.OUTCOME_OK]: "ok",
  [Code.OUTCOME_ALREADY_COMPLETED]: "already-completed",
  [Code.OUTCOME_LEASE_LOST]: "lease-lost",
  [Code.OUTCOME_CANCELLED]: "cancelled",
  [Code.OUTCOME_NOT_FOUND]: "not-found",
  [Code.OUTCOME_INVALID]: "invalid",
};

const CODES: Partial<Record<grpc.status, string>> = {
  [grpc.status.UNAUTHENTICATED]: "unauthenticated",
  [grpc.status.PERMISSION_DENIED]: "forbidden",
  [grpc.status.FAILED_PRECONDITION]: "gone",
  [grpc.status.INVALID_ARGUMENT]: "bad-request",
  [grpc.status.UNIMPLEMENTED]: "bad-request",
  [grpc.status.UNAVAILABLE]: "unavailable",
  [grpc.status.DEADLINE_EXCEEDED]: "timed-out",
  [grpc.status.CANCELLED]: "unavailable",
  [grpc.status.RESOURCE_EXHAUSTED]: "resource-exhausted",
  [grpc.status.ABORTED]: "unavailable",
};

const errorOf = (error: Partial<grpc.ServiceError>): PenstockError =>
  new PenstockError(CODES[error.code ?? grpc.status.UNKNOWN] ?? "internal-error", error.details ?? String(error), undefined, true);

interface Batch {
  message: WorkRequest;
  size: number;
  outcomes: Outcome[];
  resolve(outcomes: Outcome[]): void;
  reject(error: PenstockError): void;
}

/** Gets jobs over gRPC within the credit that it gives, and reports on the same stream. */
export class WorkStream implements Wire {
  private readonly client: WorkerClient;
  private stream: OpenStream | undefined;
  private refused = false;

  constructor(readonly session: Session, engine: string, private readonly options: ConnectionOptions) {
    const { protocol, host } = new URL(engine.replace(/^grpc/, "http"));
    const secure = protocol === "https:" ? grpc.credentials.createSsl() : grpc.credentials.createInsecure();
    this.client = new WorkerClient(host, secure, {
      "grpc.max_receive_message_length": MAX_MESSAGE,
      "grpc.max_send_message_length": MAX_MESSAGE,
      "grpc.initial_reconnect_backoff_ms": 100,
      "grpc.max_reconnect_backoff_ms": 5000,
      "grpc.keepalive_time_ms": 30_000,
      "grpc.keepalive_timeout_ms": 10_000,
      "grpc.enable_http_proxy": 0, // an engine is an inner service
    });
  }

  close(): void {
    this.client.close();
  }

  private async metadata(): Promise<grpc.Metadata> {
    const metadata = new grpc.Metadata();
    const bearer = await bearerOf(this.options).catch((error) => {
      throw new PenstockError("unauthenticated", String(error));
    });
    if (bearer !== undefined) metadata.set("authorization", bearer);
    return metadata;
  }

  async run(signal: AbortSignal): Promise<void> {
    const outages = new Backoff();
    let answered = false;
    let away = false;
    while (!signal.aborted) {
      let failed: unknown;
      try {
        const stream = new OpenStream(this.session, this.client.work(await this.metadata()));
        this.stream = stream;
        if (away) this.session.renew();
        this.session.notify();
        const end = () => stream.end(new PenstockError("unavailable", "the worker ends"));
        signal.addEventListener("abort", end);
        if (signal.aborted) end();
        failed = await stream.ended;
        signal.removeEventListener("abort", end);
        if (stream.answered) {
          answered = true;
          outages.reset();
        }
      } catch (error) {
        failed = error;
      }
      this.stream = undefined;
      if (signal.aborted) return;
      if (!mayPass(failed, answered)) {
        this.refused = true;
        throw failed;
      }
      away = true;
      this.session.settings.logger.warn(`the stream to the engine ended: ${failed}`);
      await sleep(outages.pause(failed), signal);
    }
  }

  async send(kind: ReportKind, items: Report[], timeoutMs: number): Promise<Outcome[]> {
    const outcomes: Outcome[] = [];
    for (let at = 0; at < items.length; ) {
      let size = 0;
      let end = at;
      do size += items[end++]!.variables?.length ?? 0;
      while (end < items.length && size + (items[end]!.variables?.length ?? 0) <= MESSAGE_BYTES);
      outcomes.push(...(await this.sendPart(kind, items.slice(at, end), size > MESSAGE_BYTES, timeoutMs)));
      at = end;
    }
    return outcomes;
  }

  private async sendPart(kind: ReportKind, items: Report[], large: boolean, timeoutMs: number): Promise<Outcome[]> {
    if (large || this.refused || (!this.stream && kind === "release")) return this.unary(kind, items, timeoutMs);
    const deadline = Date.now() + timeoutMs;
    await this.session.until(() => this.stream !== undefined, timeoutMs);
    const stream = this.stream;
    if (!stream) throw new PenstockError("connection-failed", "there is no stream to the engine");
    const late = setTimeout(() => stream.end(new PenstockError("timed-out", "no answer on the Work stream")), deadline - Date.now());
    try {
      return await stream.exchange(resultsOf(kind, items), items.length);
    } finally {
      clearTimeout(late);
    }
  }

  private async unary(kind: ReportKind, items: Report[], timeoutMs: number): Promise<Outcome[]> {
    const { completions, failures, parks, releases } = resultsOf(kind, items);
    const { workerId } = this.session.settings;
    const metadata = await this.metadata();
    const options = { deadline: Date.now() + timeoutMs };
    return new Promise((resolve, reject) => {
      const done = (error: grpc.ServiceError | null, answer: { results: { jobId: string; outcome: Code; reason: string }[] }) =>
        error ? reject(errorOf(error)) : resolve(answer.results.map(outcomeOf));
      if (kind === "complete") this.client.completeJobs({ workerId, completions }, metadata, options, done);
      else if (kind === "fail") this.client.failJobs({ workerId, failures }, metadata, options, done);
      else if (kind === "park") this.client.parkJobs({ workerId, parks }, metadata, options, done);
      else this.client.releaseJobs({ workerId, releases }, metadata, options, done);
    });
  }

  async beat(items: Beat[], timeoutMs: number): Promise<Outcome[]> {
    const metadata = await this.metadata();
    const heartbeats = items.map((each) => ({
      ...each,
      checkpoint: Buffer.from(each.checkpoint ?? ""),
      progress: Buffer.from(each.progress ?? ""),
    }));
    const request = { workerId: this.session.settings.workerId, heartbeats };
    return new Promise((resolve, reject) =>
      this.client.heartbeatJobs(request, metadata, { deadline: Date.now() + timeoutMs }, (error, answer) =>
        error ? reject(errorOf(error)) : resolve(answer.results.map(outcomeOf)),
      ),
    );
  }
}

const outcomeOf = (each: { jobId: string; outcome: Code; reason: string }): Outcome => ({
  jobId: each.jobId,
  outcome: OUTCOMES[each.outcome] ?? "unavailable",
  reason: each.reason,
});

function resultsOf(kind: ReportKind, items: Report[]): WorkRequest {
  const message = WorkRequest.fromPartial({});
  for (const { jobId, attempt, ...item } of items) {
    const variables = Buffer.from(item.variables ?? "");
    if (kind === "complete") message.completions.push({ jobId, attempt, variables });
    else if (kind === "release") message.releases.push({ jobId, attempt });
    else if (kind === "park") message.parks.push({ jobId, attempt, until: item.until, signal: item.signal ?? "" });
    else
      message.failures.push({
        jobId,
        attempt,
        variables,
        retryable: item.retryable ?? false,
        errorMessage: item.errorMessage ?? "",
        errorCode: item.errorCode ?? "",
        retryAfterMs: Math.round(item.retryAfterMs ?? 0),
        stackTrace: item.stackTrace ?? "",
      });
  }
  return message;
}

/** One stream: what waits for its answer, and the credit that was given. */
class OpenStream {
  answered = false;
  /** Settled, with why, when the stream has ended. */
  readonly ended: Promise<PenstockError>;
  private readonly unanswered: Batch[] = [];
  private readonly granted = new Map<string, number>();
  private readonly askedBack = new Set<string>();
  private over: PenstockError | undefined;
  private settle!: (error: PenstockError) => void;
  private readonly off: () => void;

  constructor(
    private readonly session: Session,
    private readonly call: grpc.ClientDuplexStream<WorkRequest, WorkResponse>,
  ) {
    this.ended = new Promise((resolve) => (this.settle = resolve));
    call.on("metadata", () => (this.answered = true));
    call.on("data", (message: WorkResponse) => {
      try {
        this.take(message);
      } catch (error) { // variables that are no JSON
        this.end(new PenstockError("internal-error", `unreadable message: ${error}`));
      }
    });
    call.on("error", (error: grpc.ServiceError) => {
      if (error.code === grpc.status.UNAUTHENTICATED && this.granted.size && !this.taken) this.answered = false;
      this.end(errorOf(error));
    });
    call.on("end", () => this.end(new PenstockError("unavailable", "the engine ended the stream", undefined, true)));
    const { workerId, leaseSeconds } = session.settings;
    this.call.write(WorkRequest.fromPartial({ workerId, leaseSeconds, credits: this.credits() }));
    this.off = session.onChange(() => this.grant());
  }

  private taken = false;

  end(error: PenstockError): void {
    if (this.over) return;
    this.over = error;
    this.off?.();
    this.call.on("error", () => {});
    this.call.cancel();
    for (const each of this.unanswered.splice(0))
      each.reject(new PenstockError("connection-failed", `the stream broke before the answer: ${error.reason}`, undefined, true));
    this.settle(error);
  }

  exchange(message: WorkRequest, size: number): Promise<Outcome[]> {
    return new Promise((resolve, reject) => {
      if (this.over) return reject(new PenstockError("connection-failed", this.over.reason, undefined, true));
      this.unanswered.push({ message, size, outcomes: [], resolve, reject });
      message.credits = this.credits();
      this.call.write(message);
    });
  }

  private grant(): void {
    const credits = this.over ? [] : this.credits();
    if (credits.length) this.call.write(WorkRequest.fromPartial({ credits }));
  }

  /** What to grant, or to take back, now. Types that share a limit share its room, each at least one. */
  private credits(): { jobType: string; jobs: number }[] {
    const found: { jobType: string; jobs: number }[] = [];
    for (const subscription of this.session.subscriptions) {
      const wanted = Math.ceil(Math.min(this.session.room(subscription), MAX_CREDIT) / subscription.types.length);
      for (const jobType of subscription.types) {
        const granted = this.granted.get(jobType) ?? 0;
        if (this.askedBack.has(jobType) || wanted === granted) continue;
        if (wanted > granted) this.granted.set(jobType, wanted);
        // Taking a little back costs more than a few jobs that come early.
        else if (granted > 2 * wanted + 1 || this.session.draining) this.askedBack.add(jobType);
        else continue;
        found.push({ jobType, jobs: wanted - granted });
      }
    }
    return found;
  }

  private take(message: WorkResponse): void {
    this.answered = this.taken = true;
    if (this.over) return;
    for (const { jobType, jobs } of message.credits) {
      this.granted.set(jobType, Math.max(0, jobs));
      this.askedBack.delete(jobType);
    }
    for (const each of message.outcomes) {
      const first = this.unanswered[0];
      if (!first) return this.end(new PenstockError("internal-error", "the engine answered a result that was not sent"));
      first.outcomes.push(outcomeOf(each));
      if (first.outcomes.length === first.size) this.unanswered.shift()!.resolve(first.outcomes);
    }
    const back: Report[] = [];
    for (const each of message.jobs) {
      this.granted.set(each.jobType, Math.max(0, (this.granted.get(each.jobType) ?? 0) - 1));
      if (!this.session.accept(jobOf(each))) back.push({ kind: "release", jobId: each.id, attempt: each.attempt });
    }
    if (back.length) this.exchange(resultsOf("release", back), back.length).catch(() => {});
    for (const { jobId, attempt } of message.leaseLosses) this.session.lose(jobId, attempt, "lease-lost");
    for (const { jobId, attempt } of message.cancellations) this.session.lose(jobId, attempt, "cancelled");
    this.grant();
  }
}

const textOf = (bytes: Buffer) => Buffer.from(bytes).toString("utf8");

const jobOf = (job: JobMessage): JobData & { variables: any } => ({
  id: job.id,
  jobType: job.jobType,
  instanceId: job.instanceId,
  stepId: job.stepId,
  attempt: job.attempt,
  retriesRemaining: job.retriesRemaining,
  definitionId: job.definitionId,
  definitionVersion: job.definitionVersion,
  businessKey: job.businessKey || undefined,
  idempotencyKey: job.idempotencyKey,
  variables: job.variables.length ? fromJson(textOf(job.variables)) : {},
  checkpoint: job.checkpoint.length ? fromJson(textOf(job.checkpoint)) : undefined,
});

