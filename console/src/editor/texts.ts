// Texts as an editor has them, without the editor.

export interface Replacement {
  from: number;
  to: number;
  insert: string;
}

/** What makes one text of another: all from the first character that differs to the last. */
export function replaced(before: string, after: string): Replacement {
  const shorter = Math.min(before.length, after.length);
  let [head, tail] = [0, 0];
  while (head < shorter && before[head] === after[head]) head++;
  while (tail < shorter - head && before.at(-1 - tail) === after.at(-1 - tail)) tail++;
  return { from: head, to: before.length - tail, insert: after.slice(head, after.length - tail) };
}

/** A text whose lines all end as on Windows is edited with `\n` and kept with `\r\n`; of others each character is one. */
export class Lines {
  private readonly returns: number[] = [];
  readonly shown: string;

  constructor(kept: string) {
    if (/\r\n/.test(kept) && !/(^|[^\r])\n/.test(kept)) for (let at = kept.indexOf("\r\n"); at >= 0; at = kept.indexOf("\r\n", at + 1)) this.returns.push(at);
    this.shown = this.returns.length ? kept.replaceAll("\r\n", "\n") : kept;
  }

  /** What is shown so, as it is kept. */
  kept(shown: string): string {
    return this.returns.length ? shown.replaceAll("\n", "\r\n") : shown;
  }

  /** Where it is shown what is kept there. */
  place(kept: number): number {
    let [low, high] = [0, this.returns.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.returns[middle]! < kept) low = middle + 1;
      else high = middle;
    }
    return kept - low;
  }
}

export interface Typed {
  /** Letters that are typed, or deleted, one after the other are undone together. */
  kind: "type" | "delete" | "other";
  from: number;
  to: number;
  at: number;
}

const PAUSE_MS = 500;

export function isGoneOn(before: Typed | undefined, now: Typed): boolean {
  return before !== undefined && now.kind !== "other" && now.kind === before.kind && now.at - before.at < PAUSE_MS && now.from <= before.to && now.to >= before.from;
}
