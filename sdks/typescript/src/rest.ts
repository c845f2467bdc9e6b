import { PenstockError } from "./errors.js";
import { fromJson, toJson } from "./json.js";

/** Options of a connection to the engine. */
export interface ConnectionOptions {
  /** The bearer token, or a function that is asked before each call, so that it can be renewed. */
  token?: string | (() => string | Promise<string>);
}

export interface RestRequest {
  method: string;
  path: string;
  body?: unknown;
  idempotencyKey?: string;
  timeoutMs: number;
  signal?: AbortSignal;
}

const MAX_ANSWER = 64 << 20;
const BY_STATUS: Record<number, string> = {
  400: "bad-request", 401: "unauthenticated", 403: "forbidden", 404: "not-found", 408: "unavailable", 409: "conflict",
  410: "gone", 413: "payload-too-large", 415: "unsupported-format", 429: "resource-exhausted", 502: "unavailable",
  503: "unavailable", 504: "unavailable",
};

export const bearerOf = async (options: ConnectionOptions): Promise<string | undefined> => {
  const token = typeof options.token === "function" ? await options.token() : options.token;
  return token === undefined ? undefined : `Bearer ${token}`;
};

/** One exchange over REST. Throws PenstockError, and nothing else. */
export class Rest {
  constructor(readonly base: string, private readonly options: ConnectionOptions) {}

  async call(request: RestRequest): Promise<any> {
    let body: string | undefined;
    try {
      body = request.body === undefined ? undefined : toJson(request.body);
    } catch (error) {
      throw new PenstockError("bad-request", String(error));
    }
    const headers: Record<string, string> = {};
    if (body !== undefined) headers["content-type"] = "application/json";
    if (request.idempotencyKey) headers["idempotency-key"] = request.idempotencyKey;
    const timeout = AbortSignal.timeout(Math.ceil(request.timeoutMs)); // which takes whole numbers only
    const signal = request.signal ? AbortSignal.any([request.signal, timeout]) : timeout;
    let response: Response;
    let text: string;
    try {
      const bearer = await bearerOf(this.options);
      if (bearer !== undefined) headers["authorization"] = bearer;
      response = await fetch(this.base + request.path, { method: request.method, headers, body, signal, redirect: "manual" });
      text = await textOf(response);
    } catch (error) {
      if (error instanceof PenstockError) throw error;
      if (timeout.aborted) throw new PenstockError("timed-out", `no answer within ${request.timeoutMs} ms`, undefined, true);
      const cause = (error as { cause?: { code?: string; message?: string } }).cause;
      throw new PenstockError("connection-failed", cause?.message || String(error), undefined, cause?.code !== "ECONNREFUSED");
    }
    if (!response.ok) throw refusal(response, text);
    try {
      return text === "" ? undefined : fromJson(text);
    } catch (error) {
      throw new PenstockError("internal-error", `unreadable answer: ${error}`, response.status, true);
    }
  }
}

async function textOf(response: Response): Promise<string> {
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of (response.body as AsyncIterable<Uint8Array> | null) ?? []) {
    if ((size += part.length) > MAX_ANSWER) throw new PenstockError("internal-error", "the answer is larger than 64 MiB", response.status, true);
    parts.push(part);
  }
  return Buffer.concat(parts).toString("utf8");
}

function refusal(response: Response, text: string): PenstockError {
  let told: { error?: string; reason?: string } = {};
  try {
    told = (JSON.parse(text) as typeof told) ?? {};
  } catch {
    // not the engine's own answer
  }
  if (response.status < 400) {
    const reason = `HTTP ${response.status} to ${response.headers.get("location")}: this is not the engine's address`;
    return new PenstockError("redirected", reason, response.status);
  }
  const code = typeof told.error === "string" ? told.error : BY_STATUS[response.status] ?? "internal-error";
  const made = new PenstockError(code, told.reason ?? `HTTP ${response.status}: ${text.slice(0, 500)}`, response.status, response.status >= 500);
  const after = response.headers.get("retry-after") ?? "";
  const ms = /^\d+$/.test(after) ? Number(after) * 1000 : Date.parse(after) - Date.now();
  if (ms > 0) made.retryAfterMs = ms;
  return made;
}
