// JSON as words, without the editor. What is no JSON is read as far as it goes.

export interface JsonWord {
  kind: "propertyName" | "string" | "number" | "bool" | "null" | "punctuation";
  from: number;
  to: number;
}

const WORD = /("(?:\\.|[^"\\\n])*"?)([ \t]*:)?|(-?\d[\w.+-]*)|\b(true|false)\b|\b(null)\b|[{}[\],:]/g;

/** In order. */
export function wordsOf(text: string): JsonWord[] {
  return [...text.matchAll(WORD)].map(({ 0: all, 1: string, 2: colon, 3: number, 4: bool, 5: none, index: from }) => ({
    kind: string !== undefined ? (colon ? "propertyName" : "string") : number ? "number" : bool ? "bool" : none ? "null" : "punctuation",
    from,
    to: from + (string ?? all).length,
  }));
}

const STRING_OR_BRACKET = /"(?:\\.|[^"\\\n])*"?|[{}[\]]/g;
const OPENS: Record<string, string> = { "}": "{", "]": "[" };

/** Of each bracket that has one where its other is; one that is closed by another kind has none. */
export function bracketsOf(text: string): ReadonlyMap<number, number> {
  const found = new Map<number, number>();
  const open: number[] = [];
  for (const { 0: word, index } of text.matchAll(STRING_OR_BRACKET)) {
    if (word === "{" || word === "[") open.push(index);
    else if (word in OPENS) {
      const before = open.pop();
      if (before === undefined || text[before] !== OPENS[word]) continue;
      found.set(before, index).set(index, before);
    }
  }
  return found;
}
