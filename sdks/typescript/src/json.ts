/** JSON that keeps whole numbers of any size: beyond the safe integers they are bigints. */

const MARK = "\u0000integer:";
const WRITTEN = /"\\u0000integer:(-?\d+)"/g;
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const LONG = /\d{16}/;

/** The value that a text means. Throws SyntaxError. */
export function fromJson(text: string): unknown {
  if (!LONG.test(text)) return JSON.parse(text);
  const marked = text.replace(TOKEN, (token) =>
    token.startsWith('"') || token.length < 16 || !/^-?\d+$/.test(token) || Number.isSafeInteger(Number(token))
      ? token
      : `"\\u0000integer:${token}"`,
  );
  return JSON.parse(marked, (_, value) =>
    typeof value === "string" && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value,
  );
}

/** The text of a value. Throws TypeError for what has no JSON form, NaN and infinities among it. */
export function toJson(value: unknown): string {
  const text = JSON.stringify(value, (name, each) => {
    if (typeof each === "bigint") return `${MARK}${each}`;
    if (typeof each === "number" && !Number.isFinite(each)) throw new TypeError(`${name || "the value"} is ${each}`);
    if (typeof each === "function" || typeof each === "symbol") throw new TypeError(`${name || "the value"} is a ${typeof each}`);
    return each;
  });
  if (text === undefined) throw new TypeError("there is no value");
  return text.includes("\\u0000integer:") ? text.replace(WRITTEN, "$1") : text;
}
