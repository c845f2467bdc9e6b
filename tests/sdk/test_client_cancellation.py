"""A call cancelled at any point leaves a client that works: enumerated, every step of the task once."""

from __future__ import annotations

import httpx
import trio

from penstock.client import Client, RestTransport
from tests.sdk.scripted_engine import Answer, ScriptedEngine

INSTANCE = {"id": "1f", "definitionId": "order", "definitionVersion": 1, "status": "ACTIVE"}


class CancelAt(trio.abc.Instrument):
    """Cancels the scope before the step of that number which the task makes."""

    def __init__(self, task: trio.lowlevel.Task, scope: trio.CancelScope, step: int) -> None:
        self._task = task
        self._scope = scope
        self.left = step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            if self.left == 0:
                self._scope.cancel()
            self.left -= 1


async def test_a_call_cancelled_at_any_step_leaves_a_usable_client(scripted: ScriptedEngine) -> None:
    scripted.on("POST", "/v1/instances", Answer(201, INSTANCE))
    # One connection: were it lost to a cancelled call, the next one would wait for ever.
    limits = httpx.Limits(max_connections=1)
    cancelled = 0
    step = 0
    while True:
        transport = RestTransport(http=httpx.AsyncClient(base_url=scripted.url, limits=limits))
        async with Client(transport) as client:
            with trio.CancelScope() as scope:
                at = CancelAt(trio.lowlevel.current_task(), scope, step)
                trio.lowlevel.add_instrument(at)
                try:
                    await client.start_instance("order", {"n": step})
                finally:
                    trio.lowlevel.remove_instrument(at)
            cancelled += scope.cancelled_caught
            with trio.fail_after(10):
                assert (await client.start_instance("order")).id == "1f"
        if at.left >= 0:  # the call ended before that step: all of them were tried
            break
        step += 1
    assert cancelled > 5
