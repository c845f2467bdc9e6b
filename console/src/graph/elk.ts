// ELK's worker, 1.6 MB of program: a page from which people come to a picture starts it while it has nothing else to do.
import { useEffect } from "react";

/** In a browser that does not tell when it idles. */
const WITHOUT_IDLE_MS = 200;

let started: Worker | undefined;

/** One for all pictures, until it can't be loaded or ends: then another one. */
export function elkWorker(): Worker {
  if (started) return started;
  const worker = new Worker(`${import.meta.env.BASE_URL}${__ELK_WORKER__}`);
  worker.addEventListener("error", () => {
    worker.terminate();
    if (started === worker) started = undefined;
  });
  started = worker;
  return worker;
}

/** A picture is likely to come next. `ready`: the page shows what it is for. */
export function useElkSoon(ready: boolean): void {
  useEffect(() => (ready ? whenIdle(elkWorker) : undefined), [ready]);
}

/** After the next frame is painted; what it gives takes it back. A tab that nobody sees paints none. */
export function whenIdle(act: () => void): () => void {
  let idle: number | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const frame = requestAnimationFrame(() => {
    if (typeof requestIdleCallback === "function") idle = requestIdleCallback(act);
    else timer = setTimeout(act, WITHOUT_IDLE_MS);
  });
  return () => {
    cancelAnimationFrame(frame);
    if (idle !== undefined) cancelIdleCallback(idle);
    clearTimeout(timer);
  };
}
