// Variables that somebody types as JSON: what a trial begins with, and what comes to it.
import { useMemo, useState } from "react";
import { JsonProblem, parse } from "./json";

/** Why that is no JSON object; none when it is one. */
function refusalOf(text: string): string | undefined {
  try {
    return parse(text).kind === "object" ? undefined : 'Not an object, such as {"amount": 25}';
  } catch (error) {
    if (!(error instanceof JsonProblem)) throw error;
    return `Not JSON: ${error.message}`;
  }
}

/** Undefined: none. */
export function variablesIn(text: string): string | undefined {
  return parse(text).members?.length ? text : undefined;
}

/** Variables as JSON text, which goes to the engine as it is typed: numbers keep all of their digits. */
export function useVariables(first: string) {
  const [text, setText] = useState(first);
  const refusal = useMemo(() => refusalOf(text), [text]);
  return { text, setText, refusal };
}

export function VariablesText({ label, rows, typed }: { label: string; rows: number; typed: ReturnType<typeof useVariables> }) {
  return (
    <>
      <textarea className="in mono" rows={rows} spellCheck={false} aria-label={label} aria-invalid={typed.refusal !== undefined} value={typed.text} onChange={(event) => typed.setText(event.target.value)} />
      {typed.refusal && <p className="wrong">{typed.refusal}</p>}
    </>
  );
}
