// Of a trial: a signal or a message that comes before anything waits for it.
import { useState } from "react";
import type { TriedMove } from "../api/client";
import { useVariables, variablesIn, VariablesText } from "./variables";

export function Early({ moves, nameOf, act }: { moves: readonly TriedMove[]; nameOf: (id: string) => string; act: (move: TriedMove) => void }) {
  const [at, setAt] = useState(0);
  const [key, setKey] = useState("");
  const typed = useVariables("{}");
  const chosen = moves[at]!;
  return (
    <details>
      <summary>A signal or a message that nobody waits for yet</summary>
      <select className="in" aria-label="What comes" value={at} onChange={(event) => setAt(Number(event.target.value))}>
        {moves.map((move, place) => (
          <option key={place} value={place}>
            {move.do === "signal" ? `Signal to ${nameOf(move.stepId ?? "")}` : `Message ${move.name}`}
          </option>
        ))}
      </select>
      {chosen.do === "message" && <input className="in mono" placeholder="Correlation key" aria-label="Correlation key" value={key} onChange={(event) => setKey(event.target.value)} />}
      <VariablesText label="Variables of what comes" rows={1} typed={typed} />
      <p className="acts">
        <button
          type="button"
          className="btn sm"
          disabled={typed.refusal !== undefined || (chosen.do === "message" && key === "")}
          onClick={() => {
            const variables = variablesIn(typed.text);
            act({ ...chosen, ...(variables === undefined ? {} : { variables }), ...(chosen.do === "message" ? { correlationKey: key } : {}) });
          }}
        >
          Let it come
        </button>
      </p>
    </details>
  );
}
