// pg-boss: jobs that do nothing, sent and worked off by one process. The protocol is that of measured.py.
import { PgBoss } from "pg-boss";
import { best, count, fail, feed, measured, url } from "./measured.mjs";

const QUEUE = "nothing";

/** What `work` does, without its pauses: a worker of it asks twice a second at most. */
async function workOff(boss) {
  for (;;) {
    const jobs = await boss.fetch(QUEUE, { batchSize: 500 });
    if (jobs.length === 0) continue;
    await boss.complete(QUEUE, jobs.map((job) => job.id));
    count.done += jobs.length;
  }
}

const boss = new PgBoss(url);
boss.on("error", fail);
await boss.start();
await boss.createQueue(QUEUE);
const ask = async (size) => {
  if (size === 1) await boss.send(QUEUE, {});
  else await boss.insert(QUEUE, Array.from({ length: size }, () => ({})));
};
const [size, feeders, ahead] = best ? [500, 2, 5000] : [1, 8, 500];
for (let i = 0; i < feeders; i++) feed(ask, size, ahead).catch(fail);
if (best) for (let i = 0; i < 4; i++) workOff(boss).catch(fail);
else
  await boss.work(QUEUE, async (jobs) => {
    count.done += jobs.length;
  });
await measured();
