import { randomUUID } from "node:crypto";
import { Backoff, sleep } from "./backoff.js";
import { isUnavailable, PenstockError } from "./errors.js";
import { Rest, type ConnectionOptions, type RestRequest } from "./rest.js";

const CALL_MS = 30_000;
const EXCHANGE_MS = 15_000;
const LIST_PART = 200;

/** Values with the form of JSON; whole numbers beyond the safe integers are bigints. */
export type Variables = Record<string, any>;
export type InstanceStatus = "ACTIVE" | "WAITING" | "COMPLETED" | "FAILED" | "CANCELLED";

export interface Instance {
  id: string;
  definitionId: string;
  definitionVersion: number;
  status: InstanceStatus;
  currentStepIds: string[];
  variables: Variables;
  startedAt: string;
  completedAt?: string;
  /** While it has not begun: when it will. */
  startAt?: string;
  failureReason?: string;
  failureCode?: string;
  businessKey?: string;
  instanceKey?: string;
  parentInstanceId?: string;
  flowKey?: string;
  priority?: number;
  progress?: Variables;
  result?: unknown;
  /** Of the answer to a start: the instance was there before. */
  deduplicated?: boolean;
}

/** A start with all that it may ask for. Durations are ISO 8601. */
export interface StartRequest {
  definitionId: string;
  definitionVersion?: number;
  variables?: object;
  businessKey?: string;
  instanceKey?: string;
  keepInstanceKey?: boolean;
  priority?: number;
  flowKey?: string;
  startAt?: string | Date;
  delay?: string;
  dedupe?: { key: string; window: string };
  throttle?: { key: string; limit: number; period?: string; burst?: number; onExcess?: "REJECT" | "DELAY" };
  debounce?: { key: string; wait: string; maxWait?: string; keep?: "LAST" | "MERGE" };
  /** Answer when it has ended, or after so long (60 at most). */
  waitSeconds?: number;
  /** Makes the start happen once, however often the call is repeated; the client makes one where there is none. */
  idempotencyKey?: string;
}

export interface Message {
  name: string;
  correlationKey: string;
  variables?: object;
  /** ISO 8601: how long it is kept when nobody waits for it. */
  ttl?: string;
  /** Published once under it; the client makes one where there is none. */
  messageId?: string;
  deliver?: "ONE" | "ALL";
}

export interface Published {
  delivered: { instanceId: string; stepId: string }[];
  kept: boolean;
}

export interface InstanceFilter {
  definitionId?: string;
  status?: InstanceStatus;
  businessKey?: string;
  instanceKey?: string;
  flowKey?: string;
  parentInstanceId?: string;
}

export interface Page<T> {
  items: T[];
  next?: string;
}

export interface SignalOptions {
  /** A signal that comes before its wait is open is kept until then. */
  buffer?: boolean;
  /** Your own id of the signal: kept as with `buffer`, and however often it is sent, it acts once. */
  signalId?: string;
}

const part = encodeURIComponent;

/** Calls the engine's REST API. Repeats calls that are safe to repeat while the engine is away. */
export class Client {
  private readonly rest: Rest;

  constructor(engine: string, options: ConnectionOptions = {}) {
    if (!/^https?:\/\/[^/]/.test(engine)) throw new TypeError(`not an http:// or https:// URL: ${engine}`);
    this.rest = new Rest(engine.replace(/\/+$/, ""), options);
  }

  async uploadDefinition(definition: object): Promise<{ id: string; version: number }> {
    return this.repeated({ method: "POST", path: "/v1/definitions", body: definition });
  }

  async start(request: StartRequest): Promise<Instance> {
    const { idempotencyKey = randomUUID(), ...body } = request;
    const holdMs = (request.waitSeconds ?? 0) * 1000;
    return this.repeated({ method: "POST", path: "/v1/instances", body, idempotencyKey }, { holdMs });
  }

  /** The instance as it is now; with `waitSeconds` (60 at most), when it has ended or after so long. */
  async get(id: string, { waitSeconds = 0 } = {}): Promise<Instance> {
    const query = waitSeconds ? `?waitSeconds=${waitSeconds}` : "";
    return this.repeated({ method: "GET", path: `/v1/instances/${part(id)}${query}` }, { holdMs: waitSeconds * 1000 });
  }

  /** Lets a step that waits go on; the variables are merged. */
  async signal(instanceId: string, stepId: string, variables: object = {}, options: SignalOptions = {}): Promise<void> {
    const query = new URLSearchParams();
    if (options.buffer) query.set("buffer", "true");
    if (options.signalId) query.set("signalId", options.signalId);
    const path = `/v1/instances/${part(instanceId)}/signals/${part(stepId)}${query.size ? `?${query}` : ""}`;
    const idempotencyKey = options.signalId ? undefined : randomUUID();
    await this.repeated({ method: "POST", path, body: variables, idempotencyKey });
  }

  async publish(message: Message): Promise<Published> {
    const body = { ...message, messageId: message.messageId ?? randomUUID() };
    return this.repeated({ method: "POST", path: "/v1/messages", body });
  }

  /** Cancels an instance. An answer that was lost is no error when the instance turns out to be cancelled. */
  async cancel(id: string, reason?: string): Promise<Instance> {
    try {
      return await this.repeated({ method: "POST", path: `/v1/instances/${part(id)}/cancel`, body: { reason } }, { once: true });
    } catch (error) {
      if (!(error instanceof PenstockError) || !error.maybeApplied) throw error;
      const found = await this.get(id);
      if (found.status !== "CANCELLED") throw error;
      return found;
    }
  }

  /** Reopens the failed step of a failed instance. Not repeated when its answer is lost: look at the instance then. */
  async retry(id: string, options: { fromStepId?: string; stepId?: string; note?: string; again?: boolean } = {}): Promise<Instance> {
    return this.repeated({ method: "POST", path: `/v1/instances/${part(id)}/retry`, body: options }, { once: true });
  }

  /** At most `limit` (1 to 200) instances after a cursor, newest first. */
  async list(filter: InstanceFilter = {}, { limit = 20, cursor }: { limit?: number; cursor?: string } = {}): Promise<Page<Instance>> {
    const query = new URLSearchParams({ limit: String(limit) });
    for (const [name, value] of Object.entries({ ...filter, cursor })) if (value) query.set(name, value);
    return this.repeated({ method: "GET", path: `/v1/instances?${query}` });
  }

  /** All instances that match, page after page: none is left out and none comes twice. */
  async *all(filter: InstanceFilter = {}): AsyncGenerator<Instance> {
    let cursor: string | undefined;
    do {
      const page = await this.list(filter, { limit: LIST_PART, cursor });
      yield* page.items;
      cursor = page.next;
    } while (cursor);
  }

  private async repeated(request: Omit<RestRequest, "timeoutMs">, { holdMs = 0, once = false } = {}): Promise<any> {
    const deadline = Date.now() + CALL_MS + holdMs;
    const pauses = new Backoff();
    for (;;) {
      try {
        return await this.rest.call({ ...request, timeoutMs: EXCHANGE_MS + holdMs });
      } catch (error) {
        const pause = pauses.pause(error);
        const unsafe = once && error instanceof PenstockError && error.maybeApplied;
        if (!isUnavailable(error) || unsafe || Date.now() + pause > deadline) throw error;
        await sleep(pause);
      }
    }
  }
}
