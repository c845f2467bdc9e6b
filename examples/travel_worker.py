"""The workers of `travel.json`: what books, and what undoes it.

    python examples/travel_worker.py --try     uploads the workflow and takes three journeys
    python examples/travel_worker.py           only works, until Ctrl-C

Both need an engine, e.g. `penstock serve`; PENSTOCK_URL says where, by default http://127.0.0.1:8080. The airline, the
hotel and the bank are names in this process; each of them does a thing once for a key, as services for such work do.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import anyio
import msgspec

from penstock.client import Client
from penstock.worker import JobContext, StepError, Worker

ENGINE = os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8080")
WORKFLOW = Path(__file__).with_name("travel.json")

worker = Worker(ENGINE, concurrency=32)

BOOKED: defaultdict[str, set[str]] = defaultdict(set)
"""What stands in the books of each service."""


class Journey(msgspec.Struct):
    traveller: str
    price: float
    limit: float = 1_000


class CompensatedStep(msgspec.Struct):
    """What is undone: the step, and what it completed with."""

    output: dict[str, str]
    step_id: str = msgspec.field(name="stepId", default="")


class Undo(msgspec.Struct):
    """The part of a handler's variables that it reads."""

    compensating: CompensatedStep


@worker.handler("book-flight")
async def book_flight(journey: Journey, job: JobContext) -> dict[str, str]:
    BOOKED["airline"].add(job.idempotency_key)
    return {"flight": job.idempotency_key}


@worker.handler("cancel-flight")
async def cancel_flight(undo: Undo) -> None:
    BOOKED["airline"].discard(undo.compensating.output["flight"])


@worker.handler("book-hotel")
async def book_hotel(journey: Journey, job: JobContext) -> dict[str, str]:
    BOOKED["hotel"].add(job.idempotency_key)
    return {"hotel": job.idempotency_key}


@worker.handler("cancel-hotel")
async def cancel_hotel(undo: Undo) -> None:
    BOOKED["hotel"].discard(undo.compensating.output["hotel"])


@worker.handler("charge-card")
async def charge_card(journey: Journey, job: JobContext) -> dict[str, str]:
    if journey.price > journey.limit:
        raise StepError("CARD_DECLINED", f"{journey.price:g} is over the limit of {journey.limit:g}")
    BOOKED["bank"].add(job.idempotency_key)
    return {"payment": job.idempotency_key}


@worker.handler("refund-card")
async def refund_card(undo: Undo) -> None:
    BOOKED["bank"].discard(undo.compensating.output["payment"])


@worker.handler("send-tickets")
async def send_tickets(journey: Journey) -> dict[str, str]:
    if "@" in journey.traveller:
        raise ValueError(f"no address: {journey.traveller}")
    return {"ticket": f"sent to {journey.traveller}"}


@worker.handler("ask-for-another-card")
async def ask_for_another_card(journey: Journey) -> None:
    print(f"{journey.traveller} is asked for another card")


async def try_it() -> None:
    journeys: list[dict[str, Any]] = [
        {"traveller": "Ann", "price": 400},
        {"traveller": "Bob", "price": 4_000},
        {"traveller": "no@body", "price": 400},
    ]
    async with Client(ENGINE) as client, worker:
        await client.upload_definition(WORKFLOW)
        for journey in journeys:
            started = await client.start_instance("travel", journey)
            ended = await client.wait_until_ended(started.id, timeout_s=60)
            print(journey["traveller"], ended.status, ended.failure_reason or ended.result)
    print("bookings that are left:", {service: len(keys) for service, keys in BOOKED.items()})


if __name__ == "__main__":
    anyio.run(try_it) if "--try" in sys.argv else worker.main()
