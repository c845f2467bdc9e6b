// The worker of examples/order-fulfilment.json.
//
//   node dist/examples/order.js --try     uploads the workflow, runs three orders through it and shows them
//   node dist/examples/order.js           only works, until Ctrl-C
//
// PENSTOCK_URL says where the engine is.
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { Client, NonRetryable, Retry, Worker } from "../index.js";

interface Order {
  orderId: string;
  amount: number;
  items: string[];
}

function parse({ orderId, amount = 0, items = [] }: any): Order {
  if (typeof orderId !== "string" || typeof amount !== "number" || !Array.isArray(items))
    throw new TypeError("orderId, amount or items are of another type");
  return { orderId, amount, items };
}

const url = process.env.PENSTOCK_URL ?? "http://127.0.0.1:8080";

const worker = new Worker(url, { concurrency: 32 })
  .handle<Order>(
    "order.validate",
    ({ variables: order }) => {
      // What can never be fulfilled: retries would not help.
      if (order.amount < 0) throw new NonRetryable(`order ${order.orderId} has a negative amount: ${order.amount}`);
      return { validated: true };
    },
    { parse },
  )
  .handle<Order>("stock.reserve", ({ variables: order }) => ({ reservation: `r-${order.orderId}` }), { parse, concurrency: 8 })
  .handle<Order>(
    "payment.charge",
    ({ variables: order, attempt, idempotencyKey }) => {
      if (order.items[0] === "flaky" && attempt === 1) throw new Retry("the payment service asks to come back", { afterMs: 100 });
      // The payment service charges once for a key, however often the job comes.
      return { paymentId: createHash("sha256").update(idempotencyKey).digest("hex").slice(0, 12) };
    },
    { parse, timeoutMs: 30_000 },
  )
  .handle<Order>("parcel.ship", ({ variables: order }) => ({ trackingNumber: `PS-${order.orderId}` }), { parse })
  .handle("customer.notify", ({ instanceId }) => console.log(`order of instance ${instanceId} is on its way`));

async function tryIt(): Promise<void> {
  const client = new Client(url);
  await client.uploadDefinition(JSON.parse(await readFile("../../examples/order-fulfilment.json", "utf8")));
  const orders = [
    { orderId: "A-1", amount: 25, items: ["book"] },
    { orderId: "A-2", amount: 40, items: ["flaky"] },
    { orderId: "A-3", amount: -1 },
  ];
  for (const variables of orders) {
    const { status, failureReason } = await client.start({ definitionId: "order-fulfilment", variables, waitSeconds: 60 });
    console.log(variables.orderId, status, failureReason ?? "");
  }
}

const working = worker.runUntilSignal();
if (process.argv.includes("--try")) await tryIt().finally(() => worker.stop());
await working;
