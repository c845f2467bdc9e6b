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

const UTC_KEY = "penstock.utc";
let utc = typeof localStorage !== "undefined" && localStorage.getItem(UTC_KEY) === "1";
const zoneReaders = new Set<() => void>();

/** Whether times are shown in UTC: chosen here, kept by this browser. */
export function useUtc(): boolean {
  return useSyncExternalStore(
    (read) => {
      zoneReaders.add(read);
      return () => zoneReaders.delete(read);
    },
    () => utc,
  );
}

export function chooseUtc(chosen: boolean): void {
  utc = chosen;
  localStorage.setItem(UTC_KEY, chosen ? "1" : "0");
  for (const read of zoneReaders) read();
}

/** The zone that times are shown in; undefined: the reader's. */
export function shownZone(): string | undefined {
  return utc ? "UTC" : undefined;
}

/** The time of day has 24 hours, and every time has its zone. */
function formatOf(timeZone: string | undefined): Intl.DateTimeFormat {
  return new Intl.DateTimeFormat(undefined, {
    year: "numeric",
    month: "short",
    day: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hourCycle: "h23",
    timeZoneName: "short",
    ...(timeZone !== undefined && { timeZone }),
  });
}

const FORMATS = new Map<string | undefined, Intl.DateTimeFormat>();

/** In a zone, such as Europe/Berlin, or in the one that is shown. One that the browser does not know is UTC. */
export function absolute(at: string, timeZone = shownZone()): string {
  let format = FORMATS.get(timeZone);
  if (!format) {
    try {
      format = formatOf(timeZone);
    } catch {
      format = formatOf("UTC");
    }
    FORMATS.set(timeZone, format);
  }
  return format.format(new Date(at));
}

/** Where there is room for little: a day, or the time of a day, in the zone that is shown. Of several beside each other one has its name. */
export function short(at: number, day: boolean, named: boolean): string {
  const parts: Intl.DateTimeFormatOptions = day ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  const zone = shownZone();
  return new Intl.DateTimeFormat(undefined, { ...parts, ...(named && { timeZoneName: "short" }), ...(zone !== undefined && { timeZone: zone }) }).format(at);
}

/** In the zone that is shown, and in UTC. */
export function bothZones(at: string): string {
  return `${absolute(at)}\n${new Date(at).toISOString().replace("T", " ")}`;
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
  useUtc();
  return (
    <time dateTime={at} title={bothZones(at)}>
      {absolute(at)}
    </time>
  );
}
