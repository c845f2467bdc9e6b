"""A call cancelled at any point leaves a client that works."""

from __future__ import annotations

import httpx
import trio

from penstock.client import Client, Instance, RestTransport
from penstock.testing.cancellation import CancelledAttempt, Operation, cancel_everywhere
from tests.sdk.scripted_engine import Answer, ScriptedEngine

INSTANCE = {"id": "1f", "definitionId": "order", "definitionVersion": 1, "status": "ACTIVE"}


async def test_a_call_cancelled_at_any_point_leaves_a_usable_client(scripted: ScriptedEngine) -> None:
    scripted.on("POST", "/v1/instances", Answer(201, INSTANCE))
    # One connection: were it lost to a cancelled call, the next one would wait for ever.
    limits = httpx.Limits(max_connections=1)
    client: Client

    async def prepare() -> Operation[Instance]:
        nonlocal client
        client = Client(RestTransport(http=httpx.AsyncClient(base_url=scripted.url, limits=limits)))
        return lambda: client.start_instance("order", {"n": 1})

    async def check(_attempt: CancelledAttempt[Instance]) -> None:
        with trio.fail_after(60):
            assert (await client.start_instance("order")).id == "1f"
        await client.aclose()

    points = await cancel_everywhere(prepare, check, own_task_only=True)
    assert points.cancelled > 5
