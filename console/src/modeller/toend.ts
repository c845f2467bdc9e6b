// "To the end" of Try it: what goes on by itself is let go on, move by move, by what the engine says can come. Jobs and calls
// complete, with what stands in their fields or nothing; where there are none, time goes on to the next timer. What a person
// or another program has to say is not made up: there it stops.
import type { SimulatedToken, SimulationView, TriedMove } from "../api/client";
import { type Answers, keyOf } from "./trycards";

/** Of one press. The engine takes 500 of a trial. */
export const MOVES_MAX = 200;
const TRIAL_MAX = 500;

export interface Trip {
  /** Where it stands, as the engine told it last, and after which moves. */
  view: SimulationView;
  moves: readonly TriedMove[];
  /** What the engine says of the moves. */
  ask: (moves: readonly TriedMove[]) => Promise<SimulationView>;
  /** What somebody has given to those that are open now. */
  answers: Answers;
  nameOf: (stepId: string) => string;
  /** Somebody wants it to end where it is. */
  isOver: () => boolean;
}
export interface Reached {
  moves: readonly TriedMove[];
  /** Why it went no further. */
  word: string;
}

export async function toTheEnd({ view, moves, ask, answers, nameOf, isOver }: Trip): Promise<Reached> {
  const most = Math.min(TRIAL_MAX, moves.length + MOVES_MAX);
  const open = new Map(answers);
  for (;;) {
    const done = ended(view);
    if (done !== undefined) return { moves, word: done };
    const own = tokenMoves(view, open);
    const asks = own.length ? [] : [...new Set(view.tokens.filter((token) => isAsked(token, view, open)).map((one) => nameOf(one.stepId)))];
    if (asks.length) return { moves, word: `${asks.join(", ")} ${asks.length === 1 ? "waits" : "wait"} for an answer: give it below, or let time go on.` };
    const next: TriedMove[] = own.length ? own : view.timers.length ? [{ do: "advance" }] : [];
    if (next.length === 0) return { moves, word: "Nothing goes on by itself." };
    if (moves.length >= most) return { moves, word: moves.length >= TRIAL_MAX ? `A trial has at most ${TRIAL_MAX} moves.` : `${MOVES_MAX} moves were made, and it has not ended: press again to go on.` };
    if (isOver()) return { moves, word: "Stopped." };
    const tried = [...moves, ...next.slice(0, most - moves.length)];
    try {
      view = await ask(tried);
    } catch (error) {
      return { moves, word: (error as Error).message };
    }
    const made = tried.slice(0, view.made);
    for (const { tokenId, stepId } of made.slice(moves.length)) open.delete(keyOf(tokenId, stepId));
    // One that was made may have ended what another one was for; the first of them was possible.
    if (view.stopped && made.length <= moves.length) return { moves, word: `${view.stopped}.` };
    moves = made;
  }
}

function ended({ status, can, deadEnd }: SimulationView): string | undefined {
  if (deadEnd) return "Nothing is open, and no END was reached.";
  if (status === "FAILED") return "It has failed.";
  return can.length ? undefined : "It has ended.";
}

/** Of jobs and calls, and of what else somebody has given something to. */
function tokenMoves({ tokens, can }: SimulationView, answers: Answers): TriedMove[] {
  return tokens.flatMap(({ id, stepId, state }) => {
    const key = keyOf(id, stepId);
    const works = (state === "READY" || state === "CALLED") && !answers.has(key);
    const move = works ? can.find((one) => one.tokenId === id && one.do === "complete") : answers.get(key);
    return move ? [move] : [];
  });
}

/** A user task, a wait that no time ends, or one to which something was given that can't be read. */
function isAsked({ id, stepId, state }: SimulatedToken, { timers }: SimulationView, answers: Answers): boolean {
  return answers.has(keyOf(id, stepId)) || (state === "PARKED" && !timers.some((timer) => timer.tokenId === id && timer.kind === "wait"));
}
