// The engine's REST interface. The shapes are generated from the engine's OpenAPI document (schema.d.ts).
import { readExact, textOf } from "../modeller/json";
import type { components, paths } from "./schema";

type Schemas = components["schemas"];
/** As one is read. Lists with `view=summary` come without variables. */
export type Instance = InstanceSummary & { variables: Record<string, unknown> };
export type InstanceSummary = Schemas["Instance"];
/** As a list has it, with where it stands. */
export type ListedInstance = Schemas["InstanceSummary"];
export type Execution = Schemas["StepExecution"];
export type InstanceState = Schemas["InstanceState"];
export type HistoryPage = Schemas["ShownExecutionPage"];
export type Why = Schemas["Why"];
export type AuditTrailRecord = Schemas["AuditTrailRecord"];
export type AuditRecord = Schemas["AuditRecord"];
export type Definition = Schemas["Definition"];
export type DraftCheck = Schemas["DraftCheck"];
export type VariablesInUse = Schemas["VariablesInUse"];
/** What can happen, or has; `variables` as JSON text, so that numbers keep their digits. */
export type TriedMove = Omit<Schemas["Move"], "variables"> & { variables?: string };
export type SimulationView = Omit<Schemas["SimulationView"], "can"> & { can: TriedMove[] };
export type SimulatedToken = Schemas["SimulatedToken"];
export type SimulatedTimer = Schemas["SimulatedTimer"];
export type ExpressionVerdict = Schemas["ExpressionVerdict"];
export type Step = Schemas["Step"];
export type DefinitionSummary = Schemas["DefinitionSummary"];
export type DefinitionActivity = Schemas["DefinitionActivity"];
export type EngineView = Schemas["EngineView"];
export type WorkerView = Schemas["WorkerView"];
export type FailureGroup = Schemas["FailureGroup"];
export type VersionView = Schemas["VersionView"];
export type QueuePolicy = Schemas["QueuePolicy"];
export type ScheduleSpec = Schemas["ScheduleSpec"];
export type Batch = Schemas["Batch"];
export type SqlRequest = Schemas["SqlRequest"];
export type Declaration = Schemas["Declaration"];
export type StartItem = Schemas["StartItem"];
export type Queue = Schemas["Queue"];
export type Count = Schemas["Count"];
export type Schedule = Schemas["Schedule"];
export type ScheduleRun = Schemas["ScheduleRun"];
export type RecordedAttempt = Schemas["RecordedAttempt"];
export type FailedJob = Schemas["FailedJob"];
export type Overview = Schemas["OverviewView"];
export type Readiness = Schemas["Readiness"];
export type Attention = Schemas["Attention"];
export type QueueRow = Schemas["QueueRow"];
export type OpenJob = Schemas["OpenJobView"];
export type TimerView = Schemas["TimerView"];
export type JournalRecord = Schemas["JournalRecord"];
export type RunUpdate = Schemas["RunUpdate"];
export type RejectedMessage = Schemas["RejectedMessage"];
export type ForkedFrom = Schemas["ForkedFrom"];
export type Branch = Schemas["Branch"];
export type UserTask = Schemas["UserTask"];
export type BulkFilter = Schemas["BulkFilter"];
export type BulkPreview = Schemas["BulkPreview"];
export type BulkView = Schemas["BulkView"];
export type Me = Schemas["Me"];
export type Permission = "view" | "operate" | "model" | "tasks" | "work";
export type BulkAction = "retry" | "cancel" | "signal" | "skip" | "move" | "migrate" | "edit";
export type BulkRequest = Omit<Schemas["BulkRequest"], "action"> & { action: BulkAction };
export type InstanceStatus = Instance["status"];

/** An answer that is no success, with the engine's own reason. `status` 0: nothing answered. */
export class EngineError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    reason: string,
  ) {
    super(reason);
  }
}

/** Whether the same call may succeed a moment later. */
export function isTemporary(error: unknown): boolean {
  return error instanceof EngineError && (error.status === 0 || error.status === 503);
}

/** Of calls that need another proof than the session's cookie, or one that counts still. */
const listeners = new Set<() => void>();
export function onSignedOut(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

interface Request {
  /** What stands in the path's braces. */
  path?: Record<string, string | number>;
  query?: Record<string, string | number | boolean | undefined>;
  body?: unknown;
  /** A body that is JSON text already, sent as it is. */
  text?: string;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

type Method = "GET" | "POST" | "PUT" | "DELETE";

async function call<T>(method: Method, pattern: keyof paths, request: Request): Promise<T> {
  const text = await answerOf(method, pattern, request);
  return (text ? JSON.parse(text) : undefined) as T;
}

/** The answer's body as it came. */
async function answerOf(method: Method, pattern: keyof paths, request: Request): Promise<string> {
  const path = pattern.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(request.path?.[name])));
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(request.query ?? {})) {
    if (value !== undefined && value !== "") query.set(name, String(value));
  }
  // Pages of other origins can't send it: what changes something asks for it beside the cookie.
  const headers: Record<string, string> = { "X-Penstock-Console": "1", ...request.headers };
  const body = request.text ?? (request.body === undefined ? undefined : textOf(request.body));
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(query.size ? `${path}?${query}` : path, {
      method,
      headers,
      ...(body === undefined ? {} : { body }),
      ...(request.signal === undefined ? {} : { signal: request.signal }),
    });
  } catch (error) {
    if (request.signal?.aborted) throw error;
    throw new EngineError(0, "unreachable", "The engine does not answer.");
  }
  const text = await response.text();
  if (response.ok) return text;
  if (response.status === 401 && !pattern.startsWith("/v1/sessions") && pattern !== "/v1/me") for (const told of listeners) told();
  throw errorOf(response.status, text);
}

function errorOf(status: number, text: string): EngineError {
  try {
    const told = JSON.parse(text) as Partial<Schemas["Error"]>;
    return new EngineError(status, told.error ?? "unknown", told.reason ?? `The engine answered ${status}.`);
  } catch {
    return new EngineError(status, "unknown", `The engine answered ${status}.`); // a proxy's page, maybe
  }
}

const get = <T>(pattern: keyof paths, request: Request = {}) => call<T>("GET", pattern, request);
/** With numbers that JavaScript can't hold as they are written. */
const exact = async <T>(pattern: keyof paths, request: Request): Promise<T> => readExact(await answerOf("GET", pattern, request)) as T;
const post = <T>(pattern: keyof paths, request: Request) => call<T>("POST", pattern, request);

export interface InstanceFilter {
  status?: InstanceStatus;
  delayed?: "true";
  blocked?: "true";
  definitionId?: string;
  businessKey?: string;
  businessKeyPrefix?: string;
  instanceKey?: string;
  definitionVersion?: string;
  cause?: string;
  stepId?: string;
  currentStepId?: string;
  errorContains?: string;
  bulkId?: string;
  open?: "true";
  startedAfter?: string;
  startedBefore?: string;
}
/** In place of a value that the engine does not show here (`console_hide_variables`). */
export const HIDDEN = "***";
export const PAGE_ITEMS = 50;
/** Executions that are loaded at a time: a run of 100,000 steps opens as fast as one of 5. */
export const HISTORY_ITEMS = 500;

type Variables = Record<string, unknown>;

export const engine = {
  me: (signal?: AbortSignal) => get<Me>("/v1/me", s(signal)),
  signInWays: (signal?: AbortSignal) => get<Schemas["SignInWays"]>("/v1/sessions/ways", s(signal)),
  signIn: (token: string) => post<Me>("/v1/sessions", { body: { token: token.trim() } }),
  beginSignIn: (place: string) => post<Schemas["SignInBegun"]>("/v1/sessions/oidc", { body: { place } }),
  signOut: () => post<void>("/v1/sessions/end", {}),
  ready: (signal?: AbortSignal) => get<Readiness>("/readyz", s(signal)),
  overview: (range: string, signal?: AbortSignal) => get<Overview>("/v1/overview", { query: { range }, ...s(signal) }),
  /** With more failures than `count` the row needs attention again. */
  acknowledge: (key: string, count: number, note: string) => call<void>("PUT", "/v1/attention/{key}", { path: { key }, body: { count, ...(note && { note }) } }),
  withdrawAcknowledgement: (key: string) => call<void>("DELETE", "/v1/attention/{key}", { path: { key } }),
  alive: (signal: AbortSignal) => answerOf("GET", "/healthz", { signal }),
  activateVersion: (id: string, number: number) => post<DefinitionSummary>("/v1/definitions/{id}/versions/{number}/activate", { path: { id, number } }),
  workers: (cursor: string, signal?: AbortSignal, jobType?: string) => get<Schemas["WorkerViewPage"]>("/v1/workers", { query: { jobType, cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  engines: (signal?: AbortSignal) => get<Schemas["EngineList"]>("/v1/engines", s(signal)),
  failures: (definitionId: string, range: string, signal?: AbortSignal) => get<Schemas["FailureList"]>("/v1/failures", { query: { definitionId, range }, ...s(signal) }),
  instances: (filter: InstanceFilter, cursor: string, limit: number, signal?: AbortSignal, order?: "newest" | "oldest" | "businessKey" | "ended" | "changed") =>
    get<Schemas["InstanceSummaryPage"]>("/v1/instances", { query: { ...filter, order, view: "summary", limit, cursor: cursor || undefined }, ...s(signal) }),
  countInstances: (filter: InstanceFilter, signal?: AbortSignal) => get<Count>("/v1/instances/count", { query: { ...filter }, ...s(signal) }),
  instance: (id: string, signal?: AbortSignal) => exact<Instance>("/v1/instances/{id}", { path: { id }, ...s(signal) }),
  /** As the engine keeps it, which JavaScript's numbers could not. */
  instanceText: (id: string) => answerOf("GET", "/v1/instances/{id}", { path: { id } }),
  /** Nothing when nothing changed within its time. */
  watch: (wanted: { since: string | undefined; instances: string; newerThan: string | undefined; waitSeconds?: number; overview?: boolean; range?: string }, signal: AbortSignal) =>
    get<Schemas["Changes"] | undefined>("/v1/watch", { query: wanted, signal }),
  attempts: (execution: string, signal?: AbortSignal) =>
    get<{ items: Schemas["RecordedAttempt"][] }>("/v1/executions/{id}/attempts", { path: { id: execution }, ...s(signal) }),
  variablesAfter: (id: string, after: string, signal?: AbortSignal) =>
    exact<Schemas["VariablesAsOf"]>("/v1/instances/{id}/variables", { path: { id }, query: { after }, ...s(signal) }),
  state: (id: string, signal?: AbortSignal) => get<InstanceState>("/v1/instances/{id}/state", { path: { id }, ...s(signal) }),
  /** Newest first; those that are open come with the first slice. */
  history: (id: string, cursor: string, signal?: AbortSignal) =>
    get<Schemas["ShownExecutionPage"]>("/v1/instances/{id}/history", { path: { id }, query: { order: "newest", limit: HISTORY_ITEMS, cursor }, ...s(signal) }),
  audit: (id: string, cursor: string, signal?: AbortSignal, limit = 200) =>
    get<Schemas["AuditRecordPage"]>("/v1/instances/{id}/audit", { path: { id }, query: { cursor, limit }, ...s(signal) }),
  auditTrail: (filter: Record<string, string>, cursor: string, signal?: AbortSignal) => get<Schemas["AuditTrailRecordPage"]>("/v1/audit", { query: { ...filter, cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  tree: (id: string, signal?: AbortSignal) => get<Schemas["RunTree"]>("/v1/instances/{id}/tree", { path: { id }, ...s(signal) }),
  journal: (id: string, cursor: string, signal?: AbortSignal, limit = 200) =>
    get<Schemas["JournalRecordPage"]>("/v1/instances/{id}/journal", { path: { id }, query: { cursor, limit }, ...s(signal) }),
  definitionActivity: (keyword: string, cursor: string, signal?: AbortSignal) =>
    get<Schemas["DefinitionActivityPage"]>("/v1/definition-activity", { query: { keyword, cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  definitions: (keyword: string, cursor: string, signal?: AbortSignal) =>
    get<Schemas["DefinitionSummaryPage"]>("/v1/definitions", { query: { keyword, cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  definition: (id: string, version: number | undefined, signal?: AbortSignal) =>
    version === undefined
      ? get<Definition>("/v1/definitions/{id}", { path: { id }, ...s(signal) })
      : get<Definition>("/v1/definitions/{id}/versions/{number}", { path: { id, number: version }, ...s(signal) }),
  /** As the engine keeps it, which JavaScript's numbers could not. */
  definitionText: (id: string, version: number | undefined, signal?: AbortSignal) =>
    version === undefined
      ? answerOf("GET", "/v1/definitions/{id}", { path: { id }, ...s(signal) })
      : answerOf("GET", "/v1/definitions/{id}/versions/{number}", { path: { id, number: version }, ...s(signal) }),
  validate: (text: string, signal?: AbortSignal) => post<DraftCheck>("/v1/definitions/validate", { text, ...s(signal) }),
  /** With where it reads variables. */
  validateReads: (text: string, signal?: AbortSignal) => post<DraftCheck>("/v1/definitions/validate", { text, query: { reads: true }, ...s(signal) }),
  /** The answer, a `SimulationView`, as it came. `variables` and the definition as JSON text. `test`: with all of it as a file for pytest. */
  simulate: (text: string, trial: { variables: string; startedAt: string; moves: readonly TriedMove[] }, test: boolean, signal?: AbortSignal) =>
    answerOf("POST", "/v1/simulations", {
      // A byte order mark stands nowhere but at the beginning.
      text: `{"definition": ${text.replace(/^\ufeff/, "")}, "variables": ${trial.variables}, "startedAt": "${trial.startedAt}", "moves": [${trial.moves.map(moveText).join(", ")}], "test": ${test}}`,
      ...s(signal),
    }),
  upload: (text: string) => post<DefinitionSummary>("/v1/definitions", { text }),
  variablesInUse: (id: string, signal?: AbortSignal) => get<VariablesInUse>("/v1/definitions/{id}/variables", { path: { id }, ...s(signal) }),
  expressionLanguage: (signal?: AbortSignal) => get<Schemas["ExpressionLanguage"]>("/v1/expressions/language", s(signal)),
  /** The answer, an `ExpressionVerdict`, as it came. `variables` as JSON text. */
  checkExpression: (expression: string, kind: "condition" | "value", variables: string, signal?: AbortSignal) =>
    answerOf("POST", "/v1/expressions/check", {
      text: `{"expression": ${JSON.stringify(expression)}, "kind": "${kind}", "variables": ${variables}}`,
      ...s(signal),
    }),
  versions: (id: string, cursor: string, signal?: AbortSignal) =>
    get<Schemas["VersionViewPage"]>("/v1/definitions/{id}/versions", { path: { id }, query: { cursor, limit: 200 }, ...s(signal) }),
  tokens: (id: string, version: number, signal?: AbortSignal) => get<Schemas["TokensView"]>("/v1/definitions/{id}/tokens", { path: { id }, query: { version }, ...s(signal) }),
  impact: (definition: Definition, signal?: AbortSignal) => post<Schemas["ImpactView"]>("/v1/definitions/{id}/impact", { path: { id: definition.id }, body: definition, ...s(signal) }),
  failedJobs: (jobType: string, cursor: string, signal?: AbortSignal) =>
    get<Schemas["FailedJobPage"]>("/v1/jobs", { query: { status: "FAILED", jobType, cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  openJobs: (status: "WAITING" | "LOCKED" | "BACKOFF", jobType: string, cursor: string, signal?: AbortSignal) =>
    get<Schemas["OpenJobViewPage"]>("/v1/jobs", { query: { status, jobType, cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  jobTypes: (signal?: AbortSignal) => get<{ items: QueueRow[] }>("/v1/job-types", s(signal)),
  queues: (cursor: string, signal?: AbortSignal) => get<Schemas["QueuePage"]>("/v1/queues", { query: { cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  queue: (id: string, signal?: AbortSignal) => get<Queue>("/v1/queues/{id}", { path: { id }, ...s(signal) }),
  putQueue: (id: string, policy: QueuePolicy) => call<Queue>("PUT", "/v1/queues/{id}", { path: { id }, body: policy }),
  deleteQueue: (id: string) => call<void>("DELETE", "/v1/queues/{id}", { path: { id } }),
  putSchedule: (id: string, spec: ScheduleSpec) => call<Schedule>("PUT", "/v1/schedules/{id}", { path: { id }, body: spec }),
  deleteSchedule: (id: string) => call<void>("DELETE", "/v1/schedules/{id}", { path: { id } }),
  sqlRequests: (state: string, cursor: string, signal?: AbortSignal) =>
    get<Schemas["SqlRequestPage"]>("/v1/sql-requests", { query: { state, cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  declarations: (cursor: string, signal?: AbortSignal) => get<Schemas["DeclarationPage"]>("/v1/declarations", { query: { cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  applyDeclaration: (kind: string, id: string) => post<Declaration>("/v1/declarations/{kind}/{id}/apply", { path: { kind, id } }),
  retrySqlRequest: (id: string) => post<void>("/v1/sql-requests/{id}/retry", { path: { id } }),
  dropSqlRequest: (id: string) => call<void>("DELETE", "/v1/sql-requests/{id}", { path: { id } }),
  batches: (cursor: string, signal?: AbortSignal) => get<Schemas["BatchPage"]>("/v1/batches", { query: { cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  startBatch: (items: StartItem[], onComplete: string, note: string, key: string) =>
    post<Batch>("/v1/batches", { body: { items, ...(onComplete && { onComplete }), ...(note && { note }) }, headers: { "Idempotency-Key": key } }),
  cancelBatch: (id: string, reason: string) => post<Batch>("/v1/batches/{id}/cancel", { path: { id }, body: reason ? { reason } : {} }),
  /** `payload` is JSON text, sent as it is. */
  sendMessage: (id: string, name: string, payload: string, key: string, force: boolean) =>
    post<void>("/v1/instances/{id}/messages", { path: { id }, text: `{"name": ${JSON.stringify(name)}, "payload": ${payload}, "force": ${force}}`, headers: { "Idempotency-Key": key } }),
  /** `given` is JSON text, sent as it is. */
  askRun: (id: string, name: string, given: string, key: string) =>
    post<RunUpdate>("/v1/instances/{id}/updates", { path: { id }, text: `{"name": ${JSON.stringify(name)}, "arguments": ${given}, "id": "${key}", "waitSeconds": 10}` }),
  fork: (id: string, path: string, forkId: string, laterMessages: boolean) => post<Instance>("/v1/instances/{id}/fork", { path: { id }, body: { path, forkId, laterMessages } }),
  dropMessage: (id: string, position: string, note: string) =>
    post<void>("/v1/instances/{id}/messages/{position}", { path: { id, position }, body: { drop: true, ...(note && { note }) } }),
  /** `payload` is JSON text, sent as it is. */
  correctMessage: (id: string, position: string, payload: string, note: string, force: boolean) =>
    post<void>("/v1/instances/{id}/messages/{position}", { path: { id, position }, text: `{"payload": ${payload}, "force": ${force}${note ? `, "note": ${JSON.stringify(note)}` : ""}}` }),
  pauseQueue: (id: string) => post<Queue>("/v1/queues/{id}/pause", { path: { id } }),
  resumeQueue: (id: string) => post<Queue>("/v1/queues/{id}/resume", { path: { id } }),
  schedules: (cursor: string, signal?: AbortSignal) => get<Schemas["SchedulePage"]>("/v1/schedules", { query: { cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  schedule: (id: string, signal?: AbortSignal) => get<Schedule>("/v1/schedules/{id}", { path: { id }, ...s(signal) }),
  pauseSchedule: (id: string, note: string) => post<Schedule>("/v1/schedules/{id}/pause", { path: { id }, body: note ? { note } : {} }),
  resumeSchedule: (id: string) => post<Schedule>("/v1/schedules/{id}/resume", { path: { id } }),
  triggerSchedule: (id: string, overlap: string) => post<ScheduleRun>("/v1/schedules/{id}/trigger", { path: { id }, body: overlap ? { overlap } : {} }),
  backfillSchedule: (id: string, from: string, to: string, overlap: string) => post<Schedule>("/v1/schedules/{id}/backfill", { path: { id }, body: { from, to, overlap } }),
  unlock: (id: string, note: string) => post<unknown>("/v1/jobs/{id}/unlock", { path: { id }, body: note ? { note } : {} }),
  timers: (kind: string, cursor: string, signal?: AbortSignal) => get<Schemas["TimerViewPage"]>("/v1/timers", { query: { kind, cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  settings: (signal?: AbortSignal) => get<{ items: Schemas["SettingView"][] }>("/v1/settings", s(signal)),
  previewBulk: (request: BulkRequest, signal?: AbortSignal) => post<BulkPreview>("/v1/instances/bulk", { body: { ...request, dryRun: true }, ...s(signal) }),
  startBulk: (request: BulkRequest) => post<{ id: string }>("/v1/instances/bulk", { body: request }),
  bulk: (id: string, signal?: AbortSignal) => get<BulkView>("/v1/bulk/{id}", { path: { id }, ...s(signal) }),
  bulks: (cursor: string, signal?: AbortSignal) => get<Schemas["BulkViewPage"]>("/v1/bulk", { query: { cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  stopBulk: (id: string) => post<BulkView>("/v1/bulk/{id}/stop", { path: { id } }),
  start: (definitionId: string, variables: Variables, businessKey: string, key: string) =>
    post<{ id: string }>("/v1/instances", { body: { definitionId, variables, ...(businessKey && { businessKey }) }, headers: { "Idempotency-Key": key } }),
  cancel: (id: string, reason: string, compensate: boolean) =>
    post<unknown>("/v1/instances/{id}/cancel", { path: { id }, body: { ...(reason ? { reason } : {}), ...(compensate ? { compensate } : {}) } }),
  retry: (id: string, body: Schemas["RetryBody"]) => post<unknown>("/v1/instances/{id}/retry", { path: { id }, body: given(body) }),
  skip: (id: string, body: Schemas["StepSkip"]) => post<unknown>("/v1/instances/{id}/skip", { path: { id }, body: given(body) }),
  move: (id: string, body: Schemas["TokenMove"]) => post<unknown>("/v1/instances/{id}/move", { path: { id }, body: given(body) }),
  migrate: (id: string, body: Schemas["MigrationRequest"]) => post<unknown>("/v1/instances/{id}/migrate", { path: { id }, body: given(body) }),
  checkMigration: (id: string, body: Schemas["MigrationRequest"], signal?: AbortSignal) =>
    post<Schemas["MigrationCheck"]>("/v1/instances/{id}/migrate", { path: { id }, body: { ...body, dryRun: true }, ...s(signal) }),
  editVariables: (id: string, set: Variables, remove: string[], note: string) =>
    post<Instance>("/v1/instances/{id}/variables", { path: { id }, body: { set, remove, ...(note && { note }) } }),
  tasks: (filter: { jobType?: string; assignee?: string; unclaimed?: boolean }, cursor: string, signal?: AbortSignal) =>
    get<Schemas["UserTaskPage"]>("/v1/tasks", { query: { ...filter, cursor, limit: PAGE_ITEMS }, ...s(signal) }),
  /** That one, while it is open. */
  task: (executionId: string, signal?: AbortSignal) => get<Schemas["UserTaskPage"]>("/v1/tasks", { query: { executionId }, ...s(signal) }),
  /** The oldest. */
  tasksOf: (instanceId: string) => get<Schemas["UserTaskPage"]>("/v1/tasks", { query: { instanceId, limit: PAGE_ITEMS } }),
  countTasks: (signal?: AbortSignal) => get<Count>("/v1/tasks/count", s(signal)),
  claimTask: ({ instanceId, stepId, executionId }: UserTask, by: string | undefined) =>
    post<UserTask>("/v1/tasks/{id}/{stepId}/claim", { path: { id: instanceId, stepId }, body: by === undefined ? { executionId } : { by, executionId } }),
  releaseTask: ({ instanceId, stepId, executionId }: UserTask) =>
    post<UserTask>("/v1/tasks/{id}/{stepId}/release", { path: { id: instanceId, stepId }, body: { executionId } }),
  /** `buffer`: kept, when the step does not wait yet. */
  signal: (id: string, stepId: string, variables: Variables, key: string, buffer: boolean) =>
    post<unknown>("/v1/instances/{id}/signals/{stepId}", { path: { id, stepId }, query: { buffer }, body: variables, headers: { "Idempotency-Key": key } }),
  /** Without `executionId`: the oldest that is open. `completedBy`: where the engine does not know who asks. */
  completeTask: (id: string, stepId: string, variables: Variables, executionId?: string, completedBy?: string) =>
    post<unknown>("/v1/instances/{id}/user-tasks/{stepId}/complete", { path: { id, stepId }, body: { variables, ...(executionId !== undefined && { executionId }), ...(completedBy !== undefined && { completedBy }) } }),
};

/** The text by which a failure is found: the code that its worker gave, then the reason. */
export function failureText({ failureCode, failureReason }: { failureCode?: string; failureReason?: string }): string {
  const text = failureReason ?? "";
  return failureCode === undefined || failureCode.startsWith("Penstock.") ? text : `${failureCode} · ${text}`;
}

/** Whether nothing can happen to it any more. One that failed can be retried, by anybody. */
export function isFinal({ status }: { status: InstanceStatus }): boolean {
  return status === "COMPLETED" || status === "CANCELLED";
}

/** Whether it was made of a durable workflow: it has one step, which an executor runs. */
export function isCode(definition: Definition): boolean {
  return definition.steps[0]?.jobType?.startsWith("code:") ?? false;
}

/** One per form, so that a button pressed twice acts once. `crypto.randomUUID` is not there over plain HTTP. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function moveText({ variables, ...move }: TriedMove): string {
  return variables === undefined ? JSON.stringify(move) : `${JSON.stringify(move).slice(0, -1)}, "variables": ${variables}}`;
}

/** Without fields that were left empty. */
function given<T extends object>(body: T): Partial<T> {
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== "")) as Partial<T>;
}

function s(signal: AbortSignal | undefined): { signal?: AbortSignal } {
  return signal === undefined ? {} : { signal };
}
