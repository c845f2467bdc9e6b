// Where things stood when this browser laid them out, by a hash of what was laid out: the same is not laid out again.
const DATABASE = "penstock.layouts";
const STORE = "layouts";
const ITEMS_MAX = 200;
const BYTES_MAX = 8_000_000;
/** One that large is not kept. */
const ITEM_MAX_BYTES = 1_000_000;
/** Nobody waits longer for what the browser keeps. */
const WITHIN_MS = 500;

interface Kept {
  key: string;
  made: unknown;
  /** When it was put in, in ms. */
  at: number;
  /** Of its text. */
  bytes: number;
}

let opened: Promise<IDBDatabase> | undefined;

/** Of the graph as text; made where it is not kept. A browser that keeps nothing makes it each time. */
export async function keptOrMade<T>(graph: string, make: () => Promise<T>): Promise<T> {
  const key = keyOf(graph);
  const before = await read<T>(key);
  if (before !== undefined) return before;
  const made = await make();
  void write(key, made);
  return made;
}

/** Whether this browser has something, known at once: of a new database it takes some 0.2 s to hear so. */
export function isAnythingKept(): boolean {
  try {
    return localStorage.getItem(DATABASE) !== null;
  } catch {
    return false;
  }
}

/** Whoever signs out leaves none behind. */
export async function forgetLayouts(): Promise<void> {
  try {
    localStorage.removeItem(DATABASE);
    await Promise.race([database().then((found) => answerOf(found.transaction(STORE, "readwrite").objectStore(STORE).clear())), late()]);
  } catch {
    // a browser that keeps nothing
  }
}

/** Two texts with one key are as good as impossible. */
export function keyOf(text: string): string {
  return [text.length, hash(text, 1), hash(text, 2)].map((one) => one.toString(36)).join("-");
}

/** 53 bits (cyrb53); the browser's own SHA-256 is not there over plain HTTP of another machine. */
function hash(text: string, seed: number): number {
  let [high, low] = [0xdeadbeef ^ seed, 0x41c6ce57 ^ seed];
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    high = Math.imul(high ^ code, 2654435761);
    low = Math.imul(low ^ code, 1597334677);
  }
  high = Math.imul(high ^ (high >>> 16), 2246822507) ^ Math.imul(low ^ (low >>> 13), 3266489909);
  low = Math.imul(low ^ (low >>> 16), 2246822507) ^ Math.imul(high ^ (high >>> 13), 3266489909);
  return 4294967296 * (2097151 & low) + (high >>> 0);
}

function database(): Promise<IDBDatabase> {
  opened ??= new Promise((done, failed) => {
    const asked = indexedDB.open(DATABASE, 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(STORE, { keyPath: "key" }).createIndex("at", ["at", "bytes"]);
    asked.onsuccess = () => done(asked.result);
    asked.onerror = () => failed(asked.error);
    asked.onblocked = () => failed(new Error("blocked"));
  });
  return opened;
}

function late(): Promise<undefined> {
  return new Promise((done) => setTimeout(done, WITHIN_MS, undefined));
}

async function read<T>(key: string): Promise<T | undefined> {
  try {
    const found = database().then((opened) => answerOf<Kept | undefined>(opened.transaction(STORE).objectStore(STORE).get(key)));
    return (await Promise.race([found, late()]))?.made as T | undefined;
  } catch {
    return undefined;
  }
}

/** The oldest go where there are too many, or too large ones together. */
async function write(key: string, made: unknown): Promise<void> {
  const bytes = JSON.stringify(made).length;
  if (bytes > ITEM_MAX_BYTES) return;
  try {
    const store = (await database()).transaction(STORE, "readwrite").objectStore(STORE);
    store.put({ key, made, at: Date.now(), bytes } satisfies Kept);
    let [items, all] = [0, 0];
    // The index alone: layouts are not read.
    store.index("at").openKeyCursor(null, "prev").onsuccess = ({ target }) => {
      const cursor = (target as IDBRequest<IDBCursor | null>).result;
      if (!cursor) return;
      items += 1;
      all += (cursor.key as [number, number])[1];
      if (items > ITEMS_MAX || all > BYTES_MAX) store.delete(cursor.primaryKey);
      cursor.continue();
    };
    localStorage.setItem(DATABASE, "some");
  } catch {
    // It is full, or keeps nothing.
  }
}

function answerOf<T>(asked: IDBRequest<T>): Promise<T> {
  return new Promise((done, failed) => {
    asked.onsuccess = () => done(asked.result);
    asked.onerror = () => failed(asked.error);
  });
}
