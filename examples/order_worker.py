"""The worker of `order-fulfilment.json`: one handler for each of its job types.

    python examples/order_worker.py --try     uploads the workflow, runs three orders through it and shows them
    python examples/order_worker.py           only works, until Ctrl-C: it finishes the jobs it has, gives the rest back

Both need an engine, e.g. `penstock serve`; PENSTOCK_URL says where, by default http://127.0.0.1:8080. Start instances
with variables like {"orderId": "A-1", "amount": 25, "items": ["book"]}.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec

from penstock.client import Client
from penstock.worker import JobContext, NonRetryable, Retry, Worker

ENGINE = os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8080")
WORKFLOW = Path(__file__).with_name("order-fulfilment.json")

worker = Worker(ENGINE, concurrency=32)


class Order(msgspec.Struct, rename="camel"):
    """The part of the instance's variables that these handlers read."""

    order_id: str
    amount: int = 0
    items: list[str] = msgspec.field(default_factory=list)


@dataclass
class Reservation:
    """What a handler returns is merged into the variables."""

    reservation: str
    shelves: list[str] = field(default_factory=list)


@worker.handler("order.validate")
async def validate_order(order: Order) -> dict[str, object]:
    """Refuse what can never be fulfilled: that failure is final, retries would not help."""
    if order.amount < 0:
        raise NonRetryable(f"order {order.order_id} has a negative amount: {order.amount}")
    return {"validated": True}


@worker.handler("stock.reserve", concurrency=8)
async def reserve_stock(order: Order) -> Reservation:
    """At most eight at once: the stock system takes no more connections."""
    await anyio.sleep(0.01)
    shelves = [f"shelf-{len(item)}" for item in order.items]
    return Reservation(reservation=f"r-{order.order_id}", shelves=shelves)


@worker.handler("payment.charge", timeout_s=30)
async def charge_payment(order: Order, context: JobContext) -> dict[str, object]:
    """The payment service charges once for a key, however often the job comes, also after a retry of the instance."""
    if order.items == ["flaky"] and context.attempt == 1:
        raise Retry("the payment service asks to come back", after=0.1)
    return {"paymentId": hashlib.sha256(context.idempotency_key.encode()).hexdigest()[:12]}


@worker.handler("parcel.ship")
def ship_parcel(order: Order) -> dict[str, object]:
    """A synchronous handler: it runs in a thread, the others go on meanwhile."""
    time.sleep(0.01)
    return {"trackingNumber": f"PS-{order.order_id}"}


@worker.handler("customer.notify")
async def notify_customer(context: JobContext) -> None:
    """Nothing to add to the variables: nothing returned."""
    context.log.debug("parcel %s is on its way", context.variables.get("trackingNumber"))


async def try_it() -> None:
    orders = [
        {"orderId": "A-1", "amount": 25, "items": ["book"]},
        {"orderId": "A-2", "amount": 40, "items": ["flaky"]},
        {"orderId": "A-3", "amount": -1},
    ]
    async with Client(ENGINE) as client, worker:
        await client.upload_definition(WORKFLOW)
        for order in orders:
            started = await client.start_instance("order-fulfilment", order)
            ended = await client.wait_until_ended(started.id, timeout_s=60)
            print(order["orderId"], ended.status, ended.variables.get("trackingNumber") or ended.failure_reason)


if __name__ == "__main__":
    anyio.run(try_it) if "--try" in sys.argv else worker.main()
