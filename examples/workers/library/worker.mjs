// node worker.mjs: the same with the contract's library for Node (npm install the folder workflow-sdk-node, built).
import { RestEngineClient } from "rochallor-workflow-sdk/dist/client/rest.js";
import { HandlerRegistry } from "rochallor-workflow-sdk/dist/handler/registry.js";
import { Runner } from "rochallor-workflow-sdk/dist/runner/runner.js";

const registry = new HandlerRegistry();
registry.register("greeting.say", async ({ variables }) => {
  return { variablesToSet: { greeting: `Hello, ${variables.name}` } };
});
const stop = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => stop.abort());
const engine = new RestEngineClient(process.env.PENSTOCK_URL ?? "http://127.0.0.1:8080");
await new Runner(engine, registry, { workerId: "node-1" }).run(stop.signal);
