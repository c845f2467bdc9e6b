// Durations as people say them. Whether one is allowed the engine says.
const UNITS = ["week", "day", "hour", "minute", "second"];

/** `P1DT2H` is 1 day 2 hours. None for what is not written so. */
export function inWords(text: string): string | undefined {
  const found = /^P(?:([\d.]+)W)?(?:([\d.]+)D)?(?:T(?:([\d.]+)H)?(?:([\d.]+)M)?(?:([\d.]+)S)?)?$/i.exec(text);
  const parts = found?.slice(1).flatMap((count, at) => (count === undefined ? [] : `${count} ${UNITS[at]}${count === "1" ? "" : "s"}`));
  return parts?.length ? parts.join(" ") : undefined;
}
