// Parts that are loaded when the page idles, and at the latest by the press that asks for them.
import { useEffect } from "react";
import { whenIdle } from "../graph/elk";
import { loaded } from "../parts/loaded";

const load = () => import("./pressed");

export const usePressed = loaded(load);
export const usePeople = loaded(() => import("./people"));

/** What fails is asked for again by the press. */
export function usePressedSoon(): void {
  useEffect(() => whenIdle(() => void load().catch(() => undefined)), []);
}
