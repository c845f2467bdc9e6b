// A walk through a run's journal: it is read page by page, and few pages are kept. What a record shows of the run then
// follows from the records around it and from what is open now; no code runs.
import type { Branch, JournalRecord } from "../api/client";

export interface JournalPage {
  items: JournalRecord[];
  next?: string | undefined;
}

/** Of the pages that were read, around the one that somebody looks at. */
const KEPT_PAGES = 4;

export interface Place {
  page: number;
  row: number;
}

export class Walk {
  /** Where each page that is known begins: behind which cursor, and at which record of the journal. */
  private readonly begins: { cursor: string; first: number }[] = [{ cursor: "", first: 0 }];
  private readonly kept = new Map<number, Promise<JournalPage>>();
  private readonly read: (cursor: string) => Promise<JournalPage>;

  constructor(read: (cursor: string) => Promise<JournalPage>) {
    this.read = read;
  }

  /** How many records stand before this one. */
  before({ page, row }: Place): number {
    return this.begins[page]!.first + row;
  }

  async page(number: number): Promise<JournalPage> {
    const { cursor, first } = this.begins[number]!;
    let reading = this.kept.get(number);
    if (!reading) {
      reading = this.read(cursor);
      this.kept.set(number, reading);
      for (const other of [...this.kept.keys()].filter((one) => one !== number).slice(0, Math.max(0, this.kept.size - KEPT_PAGES))) this.kept.delete(other);
    }
    try {
      const page = await reading;
      if (page.next !== undefined) this.begins[number + 1] ??= { cursor: page.next, first: first + page.items.length };
      return page;
    } catch (error) {
      this.kept.delete(number);
      throw error;
    }
  }

  /** The last page is read again: records may have come. */
  renew(): void {
    this.kept.delete(this.begins.length - 1);
  }

  async first(): Promise<Place | undefined> {
    if ((await this.page(0)).items.length === 0) this.renew();
    return (await this.page(0)).items.length > 0 ? { page: 0, row: 0 } : undefined;
  }

  /** The place itself where no record comes after it. */
  async next(at: Place): Promise<Place> {
    let page = await this.page(at.page);
    if (at.row + 1 >= page.items.length && page.next === undefined) {
      this.renew();
      page = await this.page(at.page);
    }
    if (at.row + 1 < page.items.length) return { page: at.page, row: at.row + 1 };
    if (page.next === undefined || (await this.page(at.page + 1)).items.length === 0) return at;
    return { page: at.page + 1, row: 0 };
  }

  async previous(at: Place): Promise<Place> {
    if (at.row > 0) return { page: at.page, row: at.row - 1 };
    return at.page === 0 ? at : { page: at.page - 1, row: (await this.page(at.page - 1)).items.length - 1 };
  }

  /** The last record, or the one at a position; the journal is read from its beginning or from where it is known. */
  async seek(pos: string | undefined, told: (records: number) => boolean): Promise<Place | undefined> {
    this.renew();
    for (let number = pos === undefined ? this.begins.length - 1 : 0; ; number++) {
      const page = await this.page(number);
      const row = pos === undefined ? -1 : page.items.findIndex((record) => record.pos === pos);
      if (row >= 0) return { page: number, row };
      const known = this.begins[number]!.first + page.items.length;
      if (page.next !== undefined && told(known)) continue;
      if (page.items.length > 0) return { page: number, row: page.items.length - 1 };
      return number === 0 ? undefined : { page: number - 1, row: (await this.page(number - 1)).items.length - 1 };
    }
  }

  /** The record, with those before and after it: of its page and of the two beside it. */
  async around(at: Place): Promise<{ before: JournalRecord[]; record: JournalRecord; after: JournalRecord[]; whole: boolean }> {
    const page = await this.page(at.page);
    const row = Math.min(at.row, page.items.length - 1); // a retry takes a record of an error away
    if (row < 0) throw new Error("The record is not in the journal any more. Show it as a list, and step through it again.");
    const earlier = at.page > 0 ? (await this.page(at.page - 1)).items : [];
    const later = page.next !== undefined ? await this.page(at.page + 1) : { items: [] };
    return {
      before: [...earlier, ...page.items.slice(0, row)],
      record: page.items[row]!,
      after: [...page.items.slice(row + 1), ...later.items],
      whole: later.next === undefined,
    };
  }
}

/** Kinds of records about an operation, which has its path. */
const OF_OPERATIONS: ReadonlySet<string> = new Set(["done", "failed", "stopped", "abandoned", "child", "supplied", "retry"]);

export function ofOperation(record: JournalRecord): boolean {
  return OF_OPERATIONS.has(record.kind) && !!record.path;
}

/** An operation that has ended later, or is open now. */
export interface Ahead {
  path: string;
  name?: string | undefined;
  kind: string;
  /** When it began, as far as that is known. */
  since?: number | undefined;
  /** When the record came that ended it; none: it is open now. */
  until?: number | undefined;
  /** The line where it is open now. */
  where?: string | undefined;
}

export interface BranchThen {
  /** Of the branch; empty: the workflow function itself. */
  path: string;
  last?: JournalRecord | undefined;
  /** What the branch did next; none: it has ended, or what follows was not read. */
  ahead?: Ahead | undefined;
  /** The operation whose branches it waits for. */
  within?: string | undefined;
}

function branchOf(path: string): string {
  return path.replace(/\/\d+$/, "");
}

/** Of what is open: no branch stands there. */
const NOT_STOOD_AT: ReadonlySet<string> = new Set(["not awaited", "update", "scope"]);

/** What is open now, by the tree. */
export function openOf(branches: Branch[]): Ahead[] {
  return branches.flatMap(({ path, kind, name, startedAt, endedAt, where, instanceId, children }) => [
    ...(path && kind !== undefined && !NOT_STOOD_AT.has(kind) && endedAt === undefined && instanceId === undefined ? [{ path, kind, name, since: startedAt === undefined ? undefined : Date.parse(startedAt), where }] : []),
    ...openOf(children ?? []),
  ]);
}

function aheadOf(record: JournalRecord): Ahead {
  const until = Date.parse(record.at);
  return { path: record.path!, name: record.name, kind: record.kind, until, since: record.tookMs === undefined ? undefined : until - record.tookMs };
}

/**
 * Where the branches stood when a record had come: each behind the last operation that had ended, before the one whose
 * record came next or that is open now. One that has no record yet is known from when an operation of it began.
 */
export function branchesThen(before: JournalRecord[], record: JournalRecord, after: JournalRecord[], open: Ahead[]): BranchThen[] {
  const at = Date.parse(record.at);
  const found = new Map<string, BranchThen>([["", { path: "" }]]);
  for (const one of [...before, record].filter(ofOperation)) found.set(branchOf(one.path!), { path: branchOf(one.path!), last: one });
  for (const ahead of after.filter(ofOperation).map(aheadOf)) {
    const branch = found.get(branchOf(ahead.path)) ?? (ahead.since !== undefined && ahead.since <= at ? { path: branchOf(ahead.path) } : undefined);
    if (branch && branch.ahead === undefined) found.set(branch.path, { ...branch, ahead });
  }
  // In a nursery's block the branch itself goes on: of what is open it stands at the last.
  const ended = new Set([...before, record, ...after].filter((one) => ofOperation(one) && one.kind !== "retry").map((one) => one.path));
  const last = new Map(open.filter((one) => !ended.has(one.path)).map((one) => [branchOf(one.path), one]));
  for (const [path, ahead] of last) {
    const nursery = found.get(branchOf(path.replace(/\.(\d+|\[[^\]]*\])$/, "")))?.ahead;
    const began = (ahead.since !== undefined && ahead.since <= at) || (nursery !== undefined && nursery.until === undefined);
    const branch = found.get(path) ?? (began ? { path } : undefined);
    if (branch && branch.ahead === undefined) found.set(path, { ...branch, ahead });
  }
  const stand = [...found.values()].filter((branch) => branch.ahead !== undefined || branch.path === "");
  return stand
    .map((branch) => {
      const inside = stand.find((other) => other.path !== branch.path && other.path.startsWith(`${branch.path}/`));
      if (!inside) return branch;
      const within = branch.path + inside.path.slice(branch.path.length).match(/^\/\d+/)![0];
      return { ...branch, within };
    })
    .sort((one, other) => (one.path < other.path ? -1 : 1));
}
