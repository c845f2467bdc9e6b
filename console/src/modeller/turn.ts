// Turns, one a frame, of what takes some milliseconds each and may come dozens at a time: editors of a decision's conditions,
// lists of all steps, the list of what the engine says.
import { useEffect, useState } from "react";

const waiting = new Set<() => void>();

/** Whether it has come, once it is wanted. */
export function useTurn(wanted: boolean): boolean {
  const [isDue, setDue] = useState(false);
  useEffect(() => {
    if (!wanted || isDue) return;
    const come = () => setDue(true);
    if (waiting.size === 0) requestAnimationFrame(takeTurns);
    waiting.add(come);
    return () => void waiting.delete(come);
  }, [wanted, isDue]);
  return isDue;
}

function takeTurns(): void {
  const [first] = waiting;
  if (first) {
    waiting.delete(first);
    first();
  }
  if (waiting.size) requestAnimationFrame(takeTurns);
}
