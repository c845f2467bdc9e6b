// The words between a program and who measures it, as in measured.py. Nothing is imported but Node.js's own.
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const WARM_UP_MS = 1000;

export const [, , url, settings, seconds] = process.argv;
export const best = settings === "best";
export const count = { done: 0, asked: 0 };

export function fail(error) {
  console.error(error);
  process.exit(1);
}

/** Asks for so many jobs at a time, and stays so many ahead of what is done. */
export async function feed(ask, size, ahead) {
  for (;;) {
    if (count.asked - count.done + size > ahead) {
      await sleep(1);
      continue;
    }
    count.asked += size;
    await ask(size);
  }
}

/** While the work goes on: warm up, tell, wait for the word, look, and tell what was done. */
export async function measured() {
  await sleep(WARM_UP_MS);
  console.log("ready");
  for await (const _ of createInterface({ input: process.stdin })) break;
  const before = count.done;
  const began = performance.now();
  await sleep(Number(seconds) * 1000);
  console.log(JSON.stringify({ steps: count.done - before, seconds: (performance.now() - began) / 1000 }));
  process.exit(0);
}
