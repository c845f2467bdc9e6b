import { expect, test } from "vitest";
import type { SimulationView, TriedMove } from "../api/client";
import { MOVES_MAX, toTheEnd, type Trip } from "./toend";
import { keyOf } from "./trycards";

type Token = Partial<SimulationView["tokens"][number]> & { id: string; stepId: string };

/** As the engine tells it, as far as it is looked at. */
function seen(made: number, tokens: Token[], timers: { tokenId: string; kind: string }[] = [], more: object = {}): SimulationView {
  const can = tokens.filter(({ state }) => state !== "BACKOFF").map(({ id, stepId }) => ({ do: "complete", tokenId: id, stepId }));
  return { made, status: "ACTIVE", tokens, timers, can: [...can, { do: "cancel" }], ...more } as unknown as SimulationView;
}
const END = { status: "COMPLETED", can: [] };
const job = (id: string, stepId: string): Token => ({ id, stepId, state: "READY" });
const parked = (id: string, stepId: string): Token => ({ id, stepId, state: "PARKED" });

/** The views come one after the other. */
async function trip(views: SimulationView[], more: Partial<Trip> = {}) {
  const asked: (readonly TriedMove[])[] = [];
  const ask = async (moves: readonly TriedMove[]) => {
    asked.push(moves);
    return views[asked.length] ?? views.at(-1)!;
  };
  const reached = await toTheEnd({ view: views[0]!, moves: [], ask, answers: new Map(), nameOf: (id) => id.toUpperCase(), isOver: () => false, ...more });
  return { ...reached, asked, deeds: reached.moves.map((move) => `${move.do} ${move.stepId ?? ""}`.trim()) };
}

test("jobs complete, and time goes on where there are none, until it has ended", async () => {
  const waits = seen(2, [parked("3", "wait")], [{ tokenId: "3", kind: "wait" }]);
  const again = seen(3, [{ id: "1", stepId: "late", state: "BACKOFF" }], [{ tokenId: "1", kind: "retry" }]);
  const { deeds, word, asked } = await trip([seen(0, [job("1", "a"), job("2", "b")]), waits, again, seen(4, [], [], END)]);
  expect(deeds).toEqual(["complete a", "complete b", "advance", "advance"]);
  expect(word).toBe("It has ended.");
  expect(asked.length).toBe(3);
});

test("what a person or a signal has to say is not made up", async () => {
  const first = seen(0, [job("1", "a"), parked("2", "ask")], [{ tokenId: "2", kind: "boundary" }]);
  const second = seen(1, [parked("1", "signal"), parked("2", "ask")], [{ tokenId: "2", kind: "boundary" }]);
  const { deeds, word } = await trip([first, second]);
  expect(deeds).toEqual(["complete a"]);
  expect(word).toBe("SIGNAL, ASK wait for an answer: give it below, or let time go on.");
});

test("what somebody has filled in is given once, and what can't be read is not", async () => {
  const answer = { do: "complete", tokenId: "2", stepId: "ask", variables: '{"yes": true}' };
  const given = new Map<string, TriedMove | undefined>([[keyOf("2", "ask"), answer], [keyOf("1", "a"), undefined]]);
  const { moves, word } = await trip([seen(0, [job("1", "a"), parked("2", "ask")]), seen(1, [job("1", "a"), parked("2", "ask")])], { answers: given });
  expect(moves).toEqual([answer]);
  expect(word).toMatch(/^A, ASK wait/);
});

test("a move that another one has made impossible is left out", async () => {
  const stopped = seen(1, [job("3", "next")], [], { stopped: "moves[1]: there is no such execution" });
  const { deeds, word } = await trip([seen(0, [job("1", "a"), job("2", "b")]), stopped, seen(2, [], [], END)]);
  expect(deeds).toEqual(["complete a", "complete next"]);
  expect(word).toBe("It has ended.");
  const never = await trip([seen(0, [job("1", "a")]), seen(0, [job("1", "a")], [], { stopped: "moves[0]: no" })]);
  expect([never.deeds, never.word]).toEqual([[], "moves[0]: no."]);
});

test("a circle ends after so many moves, and a press of Stop sooner", async () => {
  let made = 0;
  const round = async (moves: readonly TriedMove[]) => seen((made = moves.length), [job("1", "a")]);
  const { word } = await trip([seen(0, [job("1", "a")])], { ask: round });
  expect([made, word]).toEqual([MOVES_MAX, `${MOVES_MAX} moves were made, and it has not ended: press again to go on.`]);
  const most = await trip([seen(499, [job("1", "a")])], { ask: round, moves: Array.from({ length: 499 }, () => ({ do: "advance" }) as TriedMove) });
  expect([most.moves.length, most.word]).toEqual([500, "A trial has at most 500 moves."]);
  const over = await trip([seen(0, [job("1", "a")])], { isOver: () => true });
  expect([over.deeds, over.word]).toEqual([[], "Stopped."]);
});

test("what fails, or comes to nothing, is told, and so is an engine that does not answer", async () => {
  const failed = { status: "FAILED", can: [{ do: "retry" }] };
  expect((await trip([seen(0, [job("1", "a")]), seen(1, [], [], failed)])).word).toBe("It has failed.");
  expect((await trip([seen(0, [], [], { deadEnd: true })])).word).toBe("Nothing is open, and no END was reached.");
  const away = await trip([seen(0, [job("1", "a")])], { ask: () => Promise.reject(new Error("The engine does not answer")) });
  expect([away.deeds, away.word]).toEqual([[], "The engine does not answer"]);
});
