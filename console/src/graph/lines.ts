// Two texts line by line, by Myers's algorithm (An O(ND) Difference Algorithm and Its Variations, 1986): what went, what
// came, and of what stayed the lines near it.

export interface DiffLine {
  /** `left`: says how many lines that stayed are not shown. */
  how: "same" | "gone" | "came" | "left";
  text: string;
}

const AROUND_LINES = 3;
/** More lines that differ are not compared: work and memory grow with their square. */
export const DIFFERING_MAX = 1_000;

/** Undefined: too much differs. */
export function linesOf(before: string, after: string, around = AROUND_LINES): DiffLine[] | undefined {
  const [old, now] = [before.split("\n"), after.split("\n")];
  let [head, tail] = [0, 0];
  while (head < old.length && head < now.length && old[head] === now[head]) head++;
  while (tail < old.length - head && tail < now.length - head && old.at(-1 - tail) === now.at(-1 - tail)) tail++;
  const middle = compared(old.slice(head, old.length - tail), now.slice(head, now.length - tail));
  if (!middle) return undefined;
  const same = (text: string): DiffLine => ({ how: "same", text });
  return folded([...old.slice(0, head).map(same), ...middle, ...old.slice(old.length - tail).map(same)], around);
}

function compared(old: string[], now: string[]): DiffLine[] | undefined {
  const reach = new Map<number, number>([[1, 0]]);
  const rounds: Map<number, number>[] = [];
  for (let edits = 0; edits <= Math.min(old.length + now.length, DIFFERING_MAX); edits++) {
    rounds.push(new Map(reach));
    for (let k = -edits; k <= edits; k += 2) {
      let x = down(reach, k, edits) ? reach.get(k + 1)! : reach.get(k - 1)! + 1;
      while (x < old.length && x - k < now.length && old[x] === now[x - k]) x++;
      reach.set(k, x);
      if (x >= old.length && x - k >= now.length) return walkedBack(old, now, rounds);
    }
  }
  return undefined;
}

/** Whether the way that reaches farthest on diagonal `k` came by a line of the later text. */
function down(reach: ReadonlyMap<number, number>, k: number, edits: number): boolean {
  return k === -edits || (k !== edits && reach.get(k - 1)! < reach.get(k + 1)!);
}

function walkedBack(old: string[], now: string[], rounds: ReadonlyMap<number, number>[]): DiffLine[] {
  const lines: DiffLine[] = [];
  let [x, y] = [old.length, now.length];
  for (let edits = rounds.length - 1; x > 0 || y > 0; edits--) {
    const reach = rounds[edits]!;
    const came = down(reach, x - y, edits);
    const k = came ? x - y + 1 : x - y - 1;
    const [fromX, fromY] = edits === 0 ? [0, 0] : [reach.get(k)!, reach.get(k)! - k];
    while (x > fromX && y > fromY) {
      lines.push({ how: "same", text: old[--x]! });
      y--;
    }
    if (edits === 0) break;
    if (came) lines.push({ how: "came", text: now[--y]! });
    else lines.push({ how: "gone", text: old[--x]! });
  }
  return lines.reverse();
}

function folded(lines: DiffLine[], around: number): DiffLine[] {
  const near = new Array<boolean>(lines.length).fill(false);
  lines.forEach(({ how }, at) => {
    if (how !== "same") near.fill(true, Math.max(0, at - around), at + around + 1);
  });
  const shown: DiffLine[] = [];
  for (let at = 0; at < lines.length; ) {
    const from = at;
    while (at < lines.length && !near[at]) at++;
    if (at > from) shown.push({ how: "left", text: `… ${at - from} ${at - from === 1 ? "line" : "lines"} the same` });
    while (at < lines.length && near[at]) shown.push(lines[at++]!);
  }
  return shown;
}
