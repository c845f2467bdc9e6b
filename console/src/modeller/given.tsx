// The variables that expressions are tried with: typed, or those that an instance has.
import { useState } from "react";
import { engine } from "../api/client";
import { child, parse, pretty } from "./json";

interface Props {
  variables: string;
  readable: boolean;
  change: (variables: string) => void;
}

export function Given({ variables, readable, change }: Props) {
  const [id, setId] = useState("");
  const [wrong, setWrong] = useState<string>();
  const take = async () => {
    try {
      const text = await engine.instanceText(id.trim());
      const { start, end } = child(parse(text), "variables")!;
      change(pretty(text.slice(start, end)).trimEnd());
      setWrong(undefined);
    } catch (error) {
      setWrong(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <details>
      <summary>Variables to try expressions with</summary>
      <textarea className="in mono" aria-label="Variables to try expressions with" rows={6} spellCheck={false} value={variables} aria-invalid={!readable} onChange={(event) => change(event.target.value)} />
      <form
        className="line"
        onSubmit={(event) => {
          event.preventDefault();
          void take();
        }}
      >
        <input className="in mono" aria-label="Instance id" placeholder="Instance id" value={id} onChange={(event) => setId(event.target.value)} />
        <button type="submit" className="btn sm" disabled={id.trim() === ""}>
          Take those of an instance
        </button>
      </form>
      {wrong && (
        <p className="wrong" role="alert">
          {wrong}
        </p>
      )}
    </details>
  );
}
