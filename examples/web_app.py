"""A worker beside a web application, in one process and one event loop.

    hypercorn --bind 127.0.0.1:8000 examples/web_app:app

It needs an engine, e.g. `penstock serve`; PENSTOCK_URL says where, by default http://127.0.0.1:8080. `POST /orders`
starts an instance of `order-fulfilment`, `GET /orders/<id>` shows it:

    curl -H 'Content-Type: application/json' -d '{"orderId": "A-7", "amount": 25}' localhost:8000/orders

The application does one of the workflow's steps itself and tells its own state what happened; order_worker.py does the
others. When the server stops, the worker finishes what it has and gives the rest back.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from quart import Quart, request
from quart.typing import ResponseReturnValue

from penstock.client import BadRequest, Client, NotFound, Unavailable
from penstock.worker import JobContext, Worker

WORKFLOW = Path(__file__).with_name("order-fulfilment.json")

app = Quart(__name__)
client = Client(os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8080"))
worker = Worker(client, concurrency=8, drain_grace_s=5)
notified: Counter[str] = Counter()


@app.while_serving
async def run_worker() -> AsyncGenerator[None, None]:
    async with client, worker:
        await client.upload_definition(WORKFLOW)
        yield


@worker.handler("customer.notify")
async def notify_customer(order: dict[str, Any], job: JobContext) -> None:
    job.log.info("order %s is on its way", order.get("orderId"))
    notified[job.instance_id] += 1


@app.post("/orders")
async def place_order() -> ResponseReturnValue:
    # The order's number is the idempotency key: a form that is sent twice starts one instance.
    order = await request.get_json()
    key = f"order-{order['orderId']}"
    instance = await client.start_instance("order-fulfilment", order, business_key=key, idempotency_key=key)
    return {"id": instance.id, "status": instance.status}, 202


@app.get("/orders/<instance_id>")
async def show_order(instance_id: str) -> ResponseReturnValue:
    instance = await client.get_instance(instance_id)
    return {"status": instance.status, "steps": instance.current_step_ids, "notified": notified[instance_id]}


@app.errorhandler(NotFound)
async def not_found(error: NotFound) -> ResponseReturnValue:
    return {"error": error.reason}, 404


@app.errorhandler(BadRequest)
async def bad_request(error: BadRequest) -> ResponseReturnValue:
    return {"error": error.reason}, 400


@app.errorhandler(Unavailable)
async def unavailable(error: Unavailable) -> ResponseReturnValue:
    return {"error": error.reason}, 503
