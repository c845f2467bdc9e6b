// What tabs want to be told, and what one of them asks the engine on behalf of all.

/** What one tab shows. */
export interface Want {
  /** Instances whose changes it has to know. */
  instances: readonly string[];
  /** Whether there are newer instances than this one. */
  newerThan?: string | undefined;
  /** What is read every two seconds. */
  topics: readonly Topic[];
}

/** `ready`, or `overview` and its range. */
export type Topic = "ready" | `overview ${string}`;

/** That one call watches (engine/status/watch.py). */
export const INSTANCES_MAX = 200;

export const NOTHING: Want = { instances: [], topics: [] };

/** Of all tabs as one. Above the engine's bound every tab has its first ones watched. */
export function unionOf(wants: Iterable<Want>): Want {
  const all = [...wants];
  const instances = new Set<string>();
  const longest = Math.max(0, ...all.map((want) => want.instances.length));
  for (let at = 0; at < longest; at++) {
    for (const want of all) {
      const id = want.instances[at];
      if (id !== undefined && instances.size < INSTANCES_MAX) instances.add(id);
    }
  }
  const newest = all.flatMap((want) => (want.newerThan === undefined ? [] : [want.newerThan])).sort(byAge);
  return { instances: [...instances], newerThan: newest[0], topics: [...new Set(all.flatMap((want) => want.topics))] };
}

/** Ids are hexadecimal numbers in order of time. */
function byAge(a: string, b: string): number {
  return a.length - b.length || (a < b ? -1 : a > b ? 1 : 0);
}

/** An answer of the engine. `began`: the first about these instances, so that it says nothing of what changed. */
export interface News {
  changed: readonly string[];
  /** So many instances were started, counted to 100. */
  newer: number;
  began: boolean;
}

export interface Told {
  changed: string[];
  /** So many instances were started that are newer than `newerThan`. */
  newer: number;
  /** The first word about these: whoever has just read them need not do so again. */
  first: boolean;
}

/** What a part of a page is told. `begun` are those that it was told of before; it grows. */
export function tellingOf(news: News, instances: readonly string[], newerThan: string | undefined, begun: Set<string>): Told[] {
  const mine = news.changed.filter((id) => instances.includes(id));
  const first = news.began ? mine.filter((id) => !begun.has(id)) : [];
  const changed = mine.filter((id) => !first.includes(id));
  for (const id of mine) begun.add(id);
  const newer = newerThan === undefined ? 0 : news.newer;
  return [...(first.length ? [{ changed: first, newer: 0, first: true }] : []), ...(changed.length || newer ? [{ changed, newer, first: false }] : [])];
}
