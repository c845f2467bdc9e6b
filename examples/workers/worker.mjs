// node worker.mjs: does jobs of the type greeting.say. Needs Node 18, and nothing else.
const url = process.env.PENSTOCK_URL ?? "http://127.0.0.1:8080", workerId = `node-${process.pid}`;
const call = async (path, body) => {
  const headers = { "content-type": "application/json" };
  if (process.env.PENSTOCK_TOKEN) headers.authorization = `Bearer ${process.env.PENSTOCK_TOKEN}`;
  const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer.status === 204 ? null : answer.json();
};
const work = async ({ id, attempt, variables }) => {
  const done = { workerId, attempt, variables: { greeting: `Hello, ${variables.name}` } };
  await call(`/v1/jobs/${id}/complete`, done).catch((error) => console.error(id, error.message));
};
for (;;) {
  const poll = { workerId, jobTypes: ["greeting.say"], maxJobs: 10, leaseSeconds: 60, waitSeconds: 20 };
  const { jobs } = await call("/v1/jobs/poll", poll).catch(async (error) => {
    console.error(error.message); // the engine is away: ask again
    return new Promise((resolve) => setTimeout(resolve, 1000, { jobs: [] }));
  });
  await Promise.all(jobs.map(work));
}
