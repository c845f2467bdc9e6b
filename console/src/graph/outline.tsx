// The picture in words: every step with its state and where it leads. Hidden for eyes, unless there is too much to draw.
import { memo, useMemo } from "react";
import type { Definition, Step } from "../api/client";
import { type Edge, edgesOf, type StepState } from "./edges";

export const WORD: Record<StepState["look"], string> = { done: "completed", run: "open", wait: "waits", fail: "failed", skip: "skipped" };

interface Props {
  definition: Definition;
  states: Map<string, StepState> | undefined;
  /** Shown, with steps to choose; else for screen readers only. */
  choose?: ((stepId: string) => void) | undefined;
  /** Where they are known already. */
  edges?: Edge[];
  /** Of its steps, those that stand here by now. */
  drawn?: readonly Step[];
}

const NO_WAYS: readonly Edge[] = [];

export function Outline({ definition, states, choose, edges: known, drawn = definition.steps }: Props) {
  const edges = useMemo(() => known ?? edgesOf(definition), [definition, known]);
  const names = useMemo(() => new Map(definition.steps.map((step) => [step.id, step.name || step.id])), [definition]);
  const ways = useMemo(() => {
    const from = new Map<string, Edge[]>();
    for (const edge of edges) from.set(edge.from, [...(from.get(edge.from) ?? []), edge]);
    return from;
  }, [edges]);
  return (
    <ol className={choose ? "outline" : "sr"} aria-label="The steps in words">
      {drawn.map(({ id }) => (
        <InWords key={id} id={id} state={states?.get(id)} ways={ways.get(id) ?? NO_WAYS} names={names} choose={choose} />
      ))}
    </ol>
  );
}

interface InWordsProps {
  id: string;
  state: StepState | undefined;
  ways: readonly Edge[];
  names: ReadonlyMap<string, string>;
  choose: ((stepId: string) => void) | undefined;
}

const InWords = memo(function InWords({ id, state, ways, names, choose }: InWordsProps) {
  return (
    <li>
      {choose ? (
        <button type="button" className="link" onClick={() => choose(id)}>
          {names.get(id)}
        </button>
      ) : (
        names.get(id)
      )}
      {state && `, ${WORD[state.look]}${state.times > 1 ? ` ×${state.times}` : ""}`}
      {!choose && (
        <ul>
          {ways.map((edge) => (
            <li key={edge.id}>
              {edge.label ? `${edge.label}: ` : ""}to {names.get(edge.to) ?? edge.to}
            </li>
          ))}
        </ul>
      )}
    </li>
  );
});
