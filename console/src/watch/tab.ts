// What this tab wants to know, and how it comes here: from the tab that leads, which may be this one. Tabs that are seen
// queue for one Web Lock; who has it leads, and a tab that is hidden or closed gives it up. Over plain HTTP of another
// machine browsers have no Web Locks: then every tab asks for itself.
import { Leader, type Reading } from "./leader";
import { type News, NOTHING, type Told, type Topic, tellingOf, type Want } from "./wants";

const CHANNEL = "penstock.watch";
const LEADER_LOCK = "penstock.leader";
const TAB_LOCK = "penstock.tab.";
/** So long without a word from the tab that leads, it hangs: another one takes over. */
const SILENT_MS = 15_000;

type Message = { say: "want"; tab: string; want: Want } | { say: "who" } | { say: "news"; news: News; tab?: string | undefined } | { say: "reading"; reading: Reading };

interface Part {
  instances: readonly string[];
  newerThan: string | undefined;
  told: (news: Told) => void;
  begun: Set<string>;
}

class Tab {
  readonly #id = Math.random().toString(36).slice(2);
  readonly #locks = typeof navigator !== "undefined" && "locks" in navigator ? navigator.locks : undefined;
  readonly #channel = this.#locks && "BroadcastChannel" in globalThis ? new BroadcastChannel(CHANNEL) : undefined;
  readonly #parts = new Set<Part>();
  readonly #topics = new Map<Topic, Set<(reading: Reading) => void>>();
  readonly #readings = new Map<Topic, Reading>();
  #leader: Leader | undefined;
  /** Ends leading, or waiting for it. */
  #hidden: AbortController | undefined;
  #heardAt = 0;
  #saying = false;

  /** Begins with the first who wants something. */
  #start(): void {
    if (this.#hidden) return;
    this.#hidden = new AbortController();
    this.#channel?.addEventListener("message", ({ data }) => this.#hear(data as Message));
    document.addEventListener("visibilitychange", () => this.#seen());
    addEventListener("pagehide", () => this.#send({ say: "want", tab: this.#id, want: NOTHING }));
    setInterval(() => this.#listenForSilence(), SILENT_MS / 3);
    // Held while this tab lives, so that whoever leads knows.
    void this.#locks?.request(TAB_LOCK + this.#id, () => new Promise(() => undefined));
    this.#seen();
  }

  #seen(): void {
    this.#hidden!.abort();
    this.#hidden = new AbortController();
    this.#heardAt = Date.now();
    this.#say();
    if (!document.hidden) void this.#queueToLead({ signal: this.#hidden.signal });
  }

  async #queueToLead(how: { signal: AbortSignal } | { steal: true }): Promise<void> {
    const hidden = this.#hidden!.signal;
    if (!this.#locks) return this.#lead(hidden);
    try {
      await this.#locks.request(LEADER_LOCK, how, () => this.#lead(hidden));
    } catch {
      // Another tab took over, or this one was hidden while it waited. It queues again when it is seen again.
      if (!hidden.aborted) this.#seen();
    }
  }

  async #lead(hidden: AbortSignal): Promise<void> {
    const leader = new Leader({
      news: (news, tab) => this.#send({ say: "news", news, tab }),
      reading: (reading) => this.#send({ say: "reading", reading }),
      living: async () => this.#locks && new Set((await this.#locks.query()).held?.flatMap(({ name }) => (name?.startsWith(TAB_LOCK) ? [name.slice(TAB_LOCK.length)] : []))),
    });
    this.#leader = leader;
    this.#send({ say: "who" });
    try {
      await leader.lead(hidden);
    } finally {
      if (this.#leader === leader) this.#leader = undefined;
    }
  }

  #listenForSilence(): void {
    if (document.hidden || this.#leader || this.#topics.size === 0 || Date.now() - this.#heardAt < SILENT_MS) return;
    this.#heardAt = Date.now();
    if (this.#locks) void this.#queueToLead({ steal: true });
  }

  /** To all tabs, this one, too. */
  #send(message: Message): void {
    this.#channel?.postMessage(message);
    this.#hear(message);
  }

  #hear(message: Message): void {
    if (message.say === "want") this.#leader?.heard(message.tab, message.want);
    else if (message.say === "who") this.#say();
    else if (message.say === "news") {
      if (message.tab === undefined || message.tab === this.#id) for (const part of this.#parts) this.#tell(part, message.news);
    } else {
      this.#heardAt = Date.now();
      const { reading } = message;
      const readers = this.#topics.get(reading.topic);
      if (!readers) return;
      this.#readings.set(reading.topic, reading);
      for (const read of readers) read(reading);
    }
  }

  #tell(part: Part, news: News): void {
    for (const told of tellingOf(news, part.instances, part.newerThan, part.begun)) part.told(told);
  }

  /** Says what this tab wants, once all parts of the page have said so. */
  #say(): void {
    if (this.#saying) return;
    this.#saying = true;
    setTimeout(() => {
      this.#saying = false;
      this.#send({ say: "want", tab: this.#id, want: document.hidden ? NOTHING : this.#want() });
    });
  }

  #want(): Want {
    const parts = [...this.#parts];
    const newest = parts.flatMap((part) => (part.newerThan === undefined ? [] : [part.newerThan]));
    return { instances: [...new Set(parts.flatMap((part) => part.instances))], newerThan: newest[0], topics: [...this.#topics.keys()] };
  }

  watch(instances: readonly string[], newerThan: string | undefined, told: (news: Told) => void): () => void {
    const part = { instances, newerThan, told, begun: new Set<string>() };
    this.#start();
    this.#parts.add(part);
    this.#say();
    return () => {
      this.#parts.delete(part);
      this.#say();
    };
  }

  follow(topic: Topic, read: (reading: Reading) => void): () => void {
    this.#start();
    const readers = this.#topics.get(topic) ?? new Set();
    this.#topics.set(topic, readers.add(read));
    const before = this.#readings.get(topic);
    if (before) read(before);
    this.#say();
    return () => {
      readers.delete(read);
      if (readers.size > 0) return;
      this.#topics.delete(topic);
      this.#readings.delete(topic);
      this.#say();
    };
  }
}

export const tab = new Tab();
