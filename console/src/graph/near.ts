// Of a definition with very many steps, the part around some of them: what is drawn at first.
import type { Definition, Step } from "../api/client";
import { edgesOf } from "./edges";

/** Above so many steps a picture is neither read nor laid out in reasonable time. */
export const DRAWN_MAX_STEPS = 400;
const HOPS = 3;

/** Steps at most three edges away, in either direction, without the edges that lead out of them. */
export function nearTo(definition: Definition, around: readonly string[]): Definition {
  const edges = edgesOf(definition);
  const there = new Set(definition.steps.map((step) => step.id));
  let reached = new Set(around.filter((id) => there.has(id)));
  if (reached.size === 0 && definition.steps[0]) reached = new Set([definition.steps[0].id]);
  for (let hop = 0; hop < HOPS; hop++) {
    const wider = new Set(reached);
    for (const { from, to } of edges) {
      if (reached.has(from)) wider.add(to);
      if (reached.has(to)) wider.add(from);
    }
    if (wider.size > DRAWN_MAX_STEPS) break;
    reached = wider;
  }
  const steps = definition.steps.filter((step) => reached.has(step.id)).map((step) => within(step, reached));
  // Layouts are kept by id and version: a part has an id of its own.
  return { ...definition, id: `${definition.id} ${[...reached].sort().join(" ")}`, steps };
}

function within(step: Step, kept: ReadonlySet<string>): Step {
  const { nextStep, conditionalNextSteps, parallelNextSteps, boundaryEvents, ...rest } = step;
  return {
    ...rest,
    ...(nextStep !== undefined && kept.has(nextStep) && { nextStep }),
    ...(conditionalNextSteps && { conditionalNextSteps: Object.fromEntries(Object.entries(conditionalNextSteps).filter(([, to]) => kept.has(to))) }),
    ...(parallelNextSteps && { parallelNextSteps: parallelNextSteps.filter((to) => kept.has(to)) }),
    ...(boundaryEvents && { boundaryEvents: boundaryEvents.filter((event) => kept.has(event.targetStepId)) }),
  };
}
