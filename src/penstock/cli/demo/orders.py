"""The demo's worker: a handler for each job type of `examples/order-fulfilment.json`.

Written as a user would write it. The work is pretended: a short pause, and now and then a payment that needs a retry.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import anyio

from penstock.worker import JobContext, Retry, Worker

__all__ = ["order_worker"]

# Every so many orders the payment provider is "away" at the first try, so that a retry can be seen.
FLAKY_PAYMENT_EVERY = 10


def order_worker(url: str, done: Callable[[str], None]) -> Worker:
    """Return a worker for all five steps; ``done(step id)`` is called when a handler has succeeded."""
    worker = Worker(url, worker_id="demo-worker", concurrency=64)

    async def pretend_to_work() -> None:
        await anyio.sleep(random.uniform(0.01, 0.05))

    @worker.handler("order.validate")
    async def validate(order: dict[str, Any], job: JobContext) -> dict[str, Any]:
        await pretend_to_work()
        done(job.step_id)
        return {"valid": order["quantity"] > 0}

    @worker.handler("stock.reserve")
    async def reserve(order: dict[str, Any], job: JobContext) -> dict[str, Any]:
        await pretend_to_work()
        done(job.step_id)
        return {"shelf": f"A-{order['orderId'] % 40:02}"}

    @worker.handler("payment.charge")
    async def charge(order: dict[str, Any], job: JobContext) -> dict[str, Any]:
        await pretend_to_work()
        if order["orderId"] % FLAKY_PAYMENT_EVERY == 1 and job.attempt == 1:
            raise Retry("the payment provider did not answer")
        done(job.step_id)
        return {"paid": order["quantity"] * order["price"]}

    @worker.handler("parcel.ship")
    async def ship(order: dict[str, Any], job: JobContext) -> dict[str, Any]:
        await pretend_to_work()
        done(job.step_id)
        return {"parcel": f"P{order['orderId']:08}"}

    @worker.handler("customer.notify")
    async def notify(job: JobContext) -> None:
        await pretend_to_work()
        done(job.step_id)

    return worker
