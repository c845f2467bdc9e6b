// Which variables a draft reads that the version before it did not, beside what the runs that were have of them.
import type { DraftCheck, VariablesInUse } from "../api/client";
import { type Draft, pathIn } from "./draft";
import type { Fix } from "./fixes";
import { nodeAt, rename, set, stringOf } from "./json";

type Read = NonNullable<DraftCheck["reads"]>[number];

export interface Newly {
  name: string;
  /** In how many of the newest runs it is not there. */
  missing: number;
  /** It is null in some. */
  isNull: boolean;
  /** Where the instance fails without it. */
  uses: readonly Read[];
}

/** `own`: those that the draft sets itself. */
export function newlyRead(before: DraftCheck, now: DraftCheck, used: VariablesInUse, own: { has: (name: string) => boolean }): Newly[] {
  if (used.of === 0 || !before.valid) return [];
  return now.identifiers
    .filter((name) => !before.identifiers.includes(name) && !own.has(name))
    .map((name) => {
      const known = used.items.find((one) => one.name === name);
      return { name, missing: used.of - (known?.in ?? 0), isNull: known?.types.includes("null") ?? false, uses: (now.reads ?? []).filter((one) => one.name === name) };
    });
}

/** An expression that gives nil where the variable is nil, or `absent`, in place of one that fails: where it goes further into it. */
export function withoutFailing(draft: Draft, { path: written, from, to, dot }: Read, absent: boolean): Fix | undefined {
  if (dot === undefined) return undefined;
  const path = pathIn(draft, written);
  const isKey = path.at(-2) === "conditionalNextSteps";
  const source = isKey ? String(path.at(-1)) : stringOf(nodeAt(draft.root, path));
  if (source === undefined) return undefined;
  // The engine counts characters, JavaScript their halves.
  const characters = Array.from(source);
  const piece = (start: number, end?: number) => characters.slice(start, end).join("");
  const entered = `${piece(from, dot)}?${piece(dot, to)}`;
  const safe = absent ? `(${entered} ?? nil)` : entered;
  const whole = `${piece(0, from)}${safe}${piece(to)}`;
  return { label: `Use ${safe}`, to: (text) => (isKey ? rename(text, path, whole) : set(text, path, whole)) };
}
