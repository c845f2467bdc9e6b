import { useSyncExternalStore } from "react";

const UNITS: [number, string][] = [
  [86_400_000, "d"],
  [3_600_000, "h"],
  [60_000, "min"],
  [1_000, "s"],
];

/** 5.2 s, 3 h 4 min, 12 ms: two units at most. */
export function duration(ms: number): string {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 10_000) return `${(ms / 1_000).toFixed(1)} s`;
  const at = UNITS.findIndex(([size]) => ms >= size);
  const [size, name] = UNITS[at]!;
  const whole = Math.floor(ms / size);
  const below = UNITS[at + 1];
  const rest = below ? Math.floor((ms % size) / below[0]) : 0;
  return rest && below ? `${whole} ${name} ${rest} ${below[1]}` : `${whole} ${name}`;
}

// One clock for all relative times of the page: they change together, once a second, and never while the tab is hidden.
let now = Date.now();
const readers = new Set<() => void>();
setInterval(() => {
  if (document.hidden) return;
  now = Date.now();
  for (const read of readers) read();
}, 1_000);

export function useNow(): number {
  return useSyncExternalStore(
    (read) => {
      readers.add(read);
      return () => readers.delete(read);
    },
    () => now,
  );
}

const ABSOLUTE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** In the reader's zone and in UTC. */
export function bothZones(at: string): string {
  return `${ABSOLUTE.format(new Date(at))}\n${at.replace("T", " ")}`;
}

export function Ago({ at }: { at: string }) {
  const ms = useNow() - Date.parse(at);
  return (
    <time dateTime={at} title={bothZones(at)}>
      {ms < 1_500 ? "just now" : `${duration(Math.floor(ms / 1_000) * 1_000)} ago`}
    </time>
  );
}

export function At({ at }: { at: string }) {
  return (
    <time dateTime={at} title={bothZones(at)}>
      {ABSOLUTE.format(new Date(at))}
    </time>
  );
}
