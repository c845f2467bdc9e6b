// The tab that asks the engine, for itself and for all other tabs that are seen: one parked call, which tells the
// overview, too, and one reading of each other topic every two seconds, however many tabs there are.
import { EngineError, engine, type Overview } from "../api/client";
import { type News, NOTHING, type Topic, unionOf, type Want } from "./wants";

const AGAIN_MS = 2_000;
export const TOPICS_MS = 2_000;
const TOPIC_TIMEOUT_MS = 10_000;
/** The engine tells of its database within 2 s. An engine that hangs is reported within 5 s: it is asked every two. */
export const READY_TIMEOUT_MS = 2_800;

/** What is known of a topic; an error goes as its parts, which is what a channel between tabs carries. */
export interface Reading {
  topic: Topic;
  data?: unknown;
  error?: { status: number; code: string; reason: string };
}

export interface Audience {
  news: (news: News, tab?: string) => void;
  reading: (reading: Reading) => void;
  /** Tabs that live; undefined where the browser can't say. */
  living: () => Promise<ReadonlySet<string> | undefined>;
}

export class Leader {
  readonly #wants = new Map<string, Want>();
  readonly #audience: Audience;
  readonly #readings = new Map<Topic, Reading>();
  /** Instances that the tag covers. */
  #asked: ReadonlySet<string> = new Set();
  #since: string | undefined;
  /** Of the overview that the tag covers. */
  #range: string | undefined;
  #changed = new AbortController();

  constructor(audience: Audience) {
    this.#audience = audience;
  }

  heard(tab: string, want: Want): void {
    const before = this.#wants.get(tab) ?? NOTHING;
    if (JSON.stringify(before) === JSON.stringify(want)) return;
    if (want.instances.length + want.topics.length > 0 || want.newerThan !== undefined) this.#wants.set(tab, want);
    else this.#wants.delete(tab);
    // What is watched for another tab already has begun for this one, too.
    const known = want.instances.filter((id) => this.#asked.has(id) && !before.instances.includes(id));
    if (known.length) this.#audience.news({ changed: known, newer: 0, began: true }, tab);
    for (const topic of want.topics) {
      const reading = before.topics.includes(topic) ? undefined : this.#readings.get(topic);
      if (reading) this.#audience.reading(reading);
    }
    const changed = this.#changed;
    this.#changed = new AbortController();
    changed.abort();
  }

  async lead(gone: AbortSignal): Promise<void> {
    await Promise.all([this.#watch(gone), this.#read(gone)]);
  }

  async #watch(gone: AbortSignal): Promise<void> {
    while (!gone.aborted) {
      const changed = AbortSignal.any([this.#changed.signal, gone]);
      await this.#forgetTheDead();
      const { instances, newerThan, topics } = unionOf(this.#wants.values());
      const range = carried(topics);
      try {
        if (instances.length === 0 && newerThan === undefined && range === undefined) await pause(undefined, changed);
        else {
          await this.#begin(instances, newerThan, gone);
          if (range !== undefined && range !== this.#range) this.#tellOverview(range, await engine.watch({ since: undefined, instances: "", newerThan: undefined, overview: true, range }, gone));
          this.#range = range;
          const found = await engine.watch({ since: this.#since, instances: instances.join(","), newerThan, ...(range && { overview: true, range }) }, changed);
          if (found) this.#tell(found, false);
          this.#tellOverview(range, found);
        }
      } catch (error) {
        if (changed.aborted) continue;
        if (range !== undefined) this.#publish({ topic: `overview ${range}`, error: partsOf(error) });
        await pause(AGAIN_MS, gone); // the engine is away
      }
    }
  }

  /** The tag covers all instances afterwards, and nothing that was to be told before is lost. */
  async #begin(instances: readonly string[], newerThan: string | undefined, gone: AbortSignal): Promise<void> {
    const fresh = instances.filter((id) => !this.#asked.has(id));
    if (this.#since === undefined || fresh.length > 0) {
      const begun = await engine.watch({ since: undefined, instances: fresh.join(","), newerThan }, gone);
      const old = instances.filter((id) => this.#asked.has(id));
      if (this.#since !== undefined && (old.length > 0 || newerThan !== undefined)) {
        const late = await engine.watch({ since: this.#since, instances: old.join(","), newerThan, waitSeconds: 0 }, gone);
        if (late) this.#tell(late, false);
      }
      if (begun) this.#tell(begun, true);
    }
    this.#asked = new Set(instances);
  }

  #tell(found: { tag: string; changed: string[]; newer?: number }, began: boolean): void {
    this.#since = found.tag;
    if (found.changed.length > 0 || found.newer) this.#audience.news({ changed: found.changed, newer: found.newer ?? 0, began });
  }

  async #read(gone: AbortSignal): Promise<void> {
    let due = 0;
    while (!gone.aborted) {
      const changed = AbortSignal.any([this.#changed.signal, gone]);
      const { topics: all } = unionOf(this.#wants.values());
      for (const topic of [...this.#readings.keys()]) if (!all.includes(topic)) this.#readings.delete(topic);
      const topics = all.filter((topic) => topic !== `overview ${carried(all)}`);
      const unread = topics.filter((topic) => !this.#readings.has(topic));
      const left = due - Date.now();
      if (unread.length > 0) {
        due = Math.max(due, Date.now() + TOPICS_MS);
        await Promise.all(unread.map((topic) => this.#readOne(topic, gone)));
      } else if (topics.length === 0) await pause(undefined, changed);
      else if (left > 0) await pause(left, changed);
      else {
        due = Date.now() + TOPICS_MS;
        await Promise.all(topics.map((topic) => this.#readOne(topic, gone)));
      }
    }
  }

  async #readOne(topic: Topic, gone: AbortSignal): Promise<void> {
    const reading = await readingOf(topic, gone);
    if (!gone.aborted) this.#publish(reading);
  }

  #tellOverview(range: string | undefined, found: { overview?: Overview } | undefined): void {
    if (range !== undefined && found?.overview) this.#publish({ topic: `overview ${range}`, data: found.overview });
  }

  #publish(reading: Reading): void {
    this.#readings.set(reading.topic, reading);
    this.#audience.reading(reading);
  }

  /** Tabs that ended without a word. */
  async #forgetTheDead(): Promise<void> {
    const living = await this.#audience.living();
    for (const tab of [...this.#wants.keys()]) if (living && !living.has(tab)) this.#wants.delete(tab);
  }
}

/** The range of the overview that the parked call tells: one of those that tabs show. */
function carried(topics: readonly Topic[]): string | undefined {
  return topics.find((topic) => topic.startsWith("overview "))?.slice("overview ".length);
}

export async function readingOf(topic: Topic, gone: AbortSignal): Promise<Reading> {
  const signal = AbortSignal.any([gone, AbortSignal.timeout(topic === "ready" ? READY_TIMEOUT_MS : TOPIC_TIMEOUT_MS)]);
  try {
    return { topic, data: topic === "ready" ? await engine.ready(signal) : await engine.overview(topic.slice("overview ".length), signal) };
  } catch (error) {
    return { topic, error: partsOf(error) };
  }
}

function partsOf(error: unknown): NonNullable<Reading["error"]> {
  const { status, code, message } = error instanceof EngineError ? error : new EngineError(0, "unreachable", "The engine does not answer.");
  return { status, code, reason: message };
}

/** Until the time is over, where there is one, or the signal comes. */
function pause(ms: number | undefined, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const timer = ms === undefined ? undefined : setTimeout(done, ms);
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    }
    signal.addEventListener("abort", done);
  });
}
