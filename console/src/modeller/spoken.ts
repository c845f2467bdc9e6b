// Names, durations and times as people say them. Whether one is allowed the engine says.
const UNITS = ["week", "day", "hour", "minute", "second"];

const TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "short", hourCycle: "h23", timeZone: "UTC" });

/** `P1DT2H` is 1 day 2 hours, `2031-05-04T12:00:00Z` a Sunday. None for what is not written so. */
export function inWords(text: string): string | undefined {
  if (/^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$/i.test(text)) return Number.isNaN(Date.parse(text)) ? undefined : `${TIME.format(Date.parse(text))} UTC`;
  const found = /^P(?:([\d.]+)W)?(?:([\d.]+)D)?(?:T(?:([\d.]+)H)?(?:([\d.]+)M)?(?:([\d.]+)S)?)?$/i.exec(text);
  const parts = found?.slice(1).flatMap((count, at) => (count === undefined ? [] : `${count} ${UNITS[at]}${count === "1" ? "" : "s"}`));
  return parts?.length ? parts.join(" ") : undefined;
}

/** `boundaryEvents` is Boundary events. */
export function words(name: string): string {
  const spaced = name.replace(/([A-Z])/g, " $1").toLowerCase();
  return spaced.charAt(0).toUpperCase() + spaced.slice(1);
}
