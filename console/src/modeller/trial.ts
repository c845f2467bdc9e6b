// What is tried of a draft: a start, and the moves since.
import type { TriedMove } from "../api/client";

export interface Trial {
  /** JSON text of what it is started with. */
  variables: string;
  startedAt: string;
  moves: readonly TriedMove[];
}

export function begun(variables: string): Trial {
  return { variables, startedAt: new Date(Math.floor(Date.now() / 1000) * 1000).toISOString(), moves: [] };
}
