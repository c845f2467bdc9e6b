// What somebody types as JSON: where it is amiss.
import { JsonProblem, parse, readExact } from "../modeller/json";

export interface Flaw {
  /** The character. */
  at: number;
  text: string;
}

/** Of a text that has to be a JSON object; one of spaces only stands for an empty one. */
export function flawOf(text: string): Flaw | undefined {
  if (text.trim() === "") return undefined;
  try {
    const root = parse(text);
    if (root.kind !== "object") return { at: root.start, text: 'a JSON object is due here, such as {"amount": 25}' };
    readExact(text); // refuses a few more
    return undefined;
  } catch (error) {
    return error instanceof JsonProblem ? { at: Math.min(error.at, text.length), text: error.message } : { at: 0, text: (error as Error).message };
  }
}

/** Both count from 1. */
export function placeOf(text: string, at: number): { line: number; column: number } {
  const before = text.slice(0, at);
  return { line: before.split("\n").length, column: at - before.lastIndexOf("\n") };
}
