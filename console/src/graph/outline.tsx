// The picture in words: every step with its state and where it leads. Hidden for eyes, unless there is too much to draw.
import { useMemo } from "react";
import type { Definition } from "../api/client";
import { type Edge, edgesOf, type StepState } from "./edges";

export const WORD: Record<StepState["look"], string> = { done: "completed", run: "open", wait: "waits", fail: "failed", skip: "skipped" };

interface Props {
  definition: Definition;
  states: Map<string, StepState> | undefined;
  /** Shown, with steps to choose; else for screen readers only. */
  choose?: ((stepId: string) => void) | undefined;
  /** Where they are known already. */
  edges?: Edge[];
}

export function Outline({ definition, states, choose, edges: known }: Props) {
  const edges = useMemo(() => known ?? edgesOf(definition), [definition, known]);
  const names = useMemo(() => new Map(definition.steps.map((step) => [step.id, step.name || step.id])), [definition]);
  return (
    <ol className={choose ? "outline" : "sr"} aria-label="The steps in words">
      {definition.steps.map((step) => {
        const state = states?.get(step.id);
        const word = state ? `, ${WORD[state.look]}${state.times > 1 ? ` ×${state.times}` : ""}` : "";
        return (
          <li key={step.id}>
            {choose ? (
              <button type="button" className="link" onClick={() => choose(step.id)}>
                {names.get(step.id)}
              </button>
            ) : (
              names.get(step.id)
            )}
            {word}
            {!choose && (
              <ul>
                {edges.filter((edge) => edge.from === step.id).map((edge) => (
                  <li key={edge.id}>
                    {edge.label ? `${edge.label}: ` : ""}to {names.get(edge.to) ?? edge.to}
                  </li>
                ))}
              </ul>
            )}
          </li>
        );
      })}
    </ol>
  );
}
