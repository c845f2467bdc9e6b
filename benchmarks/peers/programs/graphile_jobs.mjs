// graphile-worker: jobs that do nothing, added and worked off by one process. The protocol is that of measured.py.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { best, count, fail, feed, measured, url } from "./measured.mjs";

// the batching of its page on performance; a job's end is then written a moment later, with others
const worker = best
  ? { concurrentJobs: 24, maxPoolSize: 26, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }
  : {};
const logger = new Logger(() => () => undefined);
const preset = { worker: { ...worker, connectionString: url, logger } };
const utils = await makeWorkerUtils({ preset });
await utils.migrate();
const ask = async (size) => {
  if (size === 1) await utils.addJob("nothing", {});
  else await utils.addJobs(Array.from({ length: size }, () => ({ identifier: "nothing", payload: {} })));
};
const [size, feeders, ahead] = best ? [500, 2, 5000] : [1, 8, 500];
for (let i = 0; i < feeders; i++) feed(ask, size, ahead).catch(fail);
const runner = await run({
  preset,
  taskList: {
    nothing: async () => {
      count.done += 1;
    },
  },
});
runner.promise.then(() => fail("the runner has ended"), fail);
await measured();
