// Where things stood when this browser laid them out, by a hash of what was laid out: the same is not laid out again.
const DATABASE = "penstock.layouts";
const STORE = "layouts";
const KEPT_MAX = 200;

let opened: Promise<IDBDatabase> | undefined;

/** Of the graph as text; made where it is not kept. A browser that keeps nothing makes it each time. */
export async function keptOrMade<T>(graph: string, make: () => Promise<T>): Promise<T> {
  const key = await hashOf(graph);
  const before = key === undefined ? undefined : await read<T>(key);
  if (before !== undefined) return before;
  const made = await make();
  if (key !== undefined) void write(key, made);
  return made;
}

/** Whoever signs out leaves none behind. */
export function forgetLayouts(): void {
  try {
    indexedDB.deleteDatabase(DATABASE);
  } catch {
    // a browser that keeps nothing
  }
}

/** None over plain HTTP of another machine. */
async function hashOf(text: string): Promise<string | undefined> {
  const digest = await globalThis.crypto?.subtle?.digest("SHA-256", new TextEncoder().encode(text));
  return digest && Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function database(): Promise<IDBDatabase> {
  opened ??= new Promise((done, failed) => {
    const asked = indexedDB.open(DATABASE, 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(STORE, { keyPath: "key" }).createIndex("at", "at");
    asked.onsuccess = () => {
      asked.result.onversionchange = () => {
        asked.result.close();
        opened = undefined;
      };
      done(asked.result);
    };
    asked.onerror = () => failed(asked.error);
  });
  return opened;
}

async function read<T>(key: string): Promise<T | undefined> {
  try {
    return (await answerOf<{ made: T } | undefined>((await database()).transaction(STORE).objectStore(STORE).get(key)))?.made;
  } catch {
    return undefined;
  }
}

/** The oldest go. */
async function write(key: string, made: unknown): Promise<void> {
  try {
    const store = (await database()).transaction(STORE, "readwrite").objectStore(STORE);
    store.put({ key, at: Date.now(), made });
    const over = (await answerOf(store.count())) - KEPT_MAX;
    if (over > 0) for (const oldest of await answerOf(store.index("at").getAllKeys(null, over))) store.delete(oldest);
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
