// node worker.mjs: does jobs of the type greeting.say. Needs Node 18, and nothing else.
const url = process.env.PENSTOCK_URL ?? "http://127.0.0.1:8080", token = process.env.PENSTOCK_TOKEN, workerId = `node-${process.pid}`;
const pause = () => new Promise((resolve) => setTimeout(resolve, 1000));
class BadInput extends Error {} // what trying again does not repair

const say = async (variables) => {
  if (typeof variables?.name !== "string") throw new BadInput("the variable name is missing, or no text");
  return { greeting: `Hello, ${variables.name}` };
};
const call = async (path, body) => { // throws for every answer but 2xx, and for none within 30 s
  const headers = { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) };
  const signal = AbortSignal.timeout(30_000);
  const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body), signal });
  const text = await answer.text();
  if (!answer.ok) throw Object.assign(new Error(`${path}: ${answer.status} ${text.slice(0, 500)}`), { status: answer.status });
  return text;
};
const work = async (job) => {
  if (typeof job?.id !== "string") return console.error("no job, but", job);
  const { id, attempt, variables } = job;
  let report = "complete", body = { workerId, attempt };
  try {
    body.variables = await say(variables);
    JSON.stringify(body); // a result that is no JSON fails the job
  } catch (error) {
    console.error(`job ${id}:`, error);
    report = "fail";
    body = { workerId, attempt, retryable: !(error instanceof BadInput), errorMessage: String(error) };
  }
  for (let tries = 1; ; tries++) { // twice is once: what got no answer is said again
    try {
      return await call(`/v1/jobs/${id}/${report}`, body);
    } catch (error) {
      console.error(error.message);
      if ((error.status < 500 && error.status !== 429) || tries === 5) return; // refused (409: it is another's now), or given up: the lease ends
      await pause();
    }
  }
};
for (;;) {
  try {
    const poll = { workerId, jobTypes: ["greeting.say"], maxJobs: 10, leaseSeconds: 60, waitSeconds: 20 };
    const jobs = JSON.parse(await call("/v1/jobs/poll", poll))?.jobs;
    if (!Array.isArray(jobs)) throw new Error("the answer to a poll has no jobs");
    await Promise.all(jobs.map(work));
  } catch (error) { // the engine is away, or refuses us: ask again, but not at once
    console.error(error.message, error.cause ?? "");
    await pause();
  }
}
