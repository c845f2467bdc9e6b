// What an expression may go on with, and what its words are for: of the variables and functions that are known. The engine
// alone reads expressions; here they are taken apart into words, to colour them.
import type { Word } from "./context";
import { child, type Node, parse } from "./json";

const SHOWN_MAX = 12;

/** What is between `${` and `}`. */
export function expressionIn(text: string): string | undefined {
  return text.startsWith("${") && text.endsWith("}") ? text.slice(2, -1) : undefined;
}

export function wordBefore(text: string, at: number): string {
  return /[\p{L}_$][\p{L}\p{N}_]*$/u.exec(text.slice(0, at).replace(/^\$\{/, "  "))?.[0] ?? "";
}

const STRINGS = /"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`/gu;
const TERM_FOLLOWS = /(?:^(?:\$\{)?|[-+*/%^<>=!&|?:;,([{.]|\b(?:and|or|not|in|matches|contains|startsWith|endsWith|let))\s*$/u;

/**
 * Of a list that nobody asked for. Nothing: within a string, a number or a word, and behind what is complete. Shown: a term
 * may begin, or stands there as it is; Enter and Tab are for what was typed. Taken: they take what the letters begin.
 */
export function wantedAt(words: readonly Word[], text: string, at: number): "nothing" | "shown" | "taken" {
  const typed = wordBefore(text, at);
  const before = text.slice(0, at - typed.length).replace(STRINGS, "0");
  if (/["'`]|\d$|\d\.$/u.test(before) || /^[\p{L}\p{N}_]/u.test(text.slice(at))) return "nothing";
  if (typed === "") return TERM_FOLLOWS.test(before) ? "shown" : "nothing";
  return words.some((word) => word.name === typed) ? "shown" : "taken";
}

const OWNER = /([\p{L}_$][\p{L}\p{N}_]*(?:\??\.[\p{L}_$][\p{L}\p{N}_]*)*)\??\.$/u;

/** Of all that may stand there: after a dot the keys of what stands before it, among the variables given, and methods. */
export function matching(words: readonly Word[], variables: string, text: string, at: number): Word[] {
  const typed = wordBefore(text, at);
  const before = text.slice(0, at - typed.length);
  const owner = OWNER.exec(before)?.[1];
  const may = /\.$/.test(before) && !/\d\.$/.test(before) ? [...keysOf(variables, owner), ...words.filter((word) => word.method)] : words.filter((word) => !word.method);
  const small = typed.toLowerCase();
  return may.filter((word) => word.name.toLowerCase().startsWith(small) && word.name !== typed).slice(0, SHOWN_MAX);
}

function keysOf(variables: string, owner: string | undefined): Word[] {
  const found = owner?.split(/\??\./).reduce<Node | undefined>(child, parse(variables));
  return (found?.members ?? []).filter(({ key }) => /^[\p{L}_$][\p{L}\p{N}_]*$/u.test(key)).map(({ key }) => ({ name: key, call: false, note: `of ${owner}` }));
}

/** Of the word that has the character at this place, or ends there. */
export function helpOf(words: readonly Word[], text: string, at: number): Word | undefined {
  const name = wordBefore(text, at) + (/^[\p{L}\p{N}_]*/u.exec(text.slice(Math.max(0, at)))?.[0] ?? "");
  return name === "" ? undefined : words.find((word) => word.name === name && word.help !== undefined);
}

export interface Token {
  from: number;
  to: number;
  kind: "string" | "number" | "word" | "function" | "name" | "operator";
}

const TOKEN = /("(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|`[^`]*`?)|(\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)|([\p{L}_$][\p{L}\p{N}_]*)|([-+*/%^<>=!&|?:#]+)/gu;

/** Of an expression, or of text that is one between `${` and `}`. */
export function tokensOf(words: readonly Word[], text: string, template: boolean): Token[] {
  const begun = template ? 2 : 0;
  if (template && !text.startsWith("${")) return [];
  const known = new Set(words.filter((word) => word.operator).map((word) => word.name));
  return [...text.slice(begun).matchAll(TOKEN)].map(({ 0: all, 1: string, 2: number, 3: name, index }) => {
    const from = begun + index;
    const called = /^\s*\(/.test(text.slice(from + all.length));
    const kind = string ? "string" : number ? "number" : !name ? "operator" : known.has(name) ? "word" : called ? "function" : "name";
    return { from, to: from + all.length, kind };
  });
}
