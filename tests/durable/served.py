"""An engine with a gRPC port in the test's own process, and the two ways in which an `App` has its runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import trio

from penstock.engine.engine import Engine
from penstock.runtime.access import make_gate
from penstock.runtime.node import Node, address, bind
from penstock.runtime.stopping import Stopping
from penstock.settings import Secret, Settings


class Served:
    """``at``: where its gRPC port is, ``rest``: its REST port. `stop` lets its listeners and its services end."""

    def __init__(self, engine: Engine, at: str, rest: str, stopping: Stopping, scope: trio.CancelScope) -> None:
        self.engine, self.at, self.rest = engine, at, rest
        self._stopping, self._scope = stopping, scope
        self.ended = trio.Event()

    async def stop(self) -> None:
        """As SIGTERM does."""
        self._stopping.asked.set()
        await self.ended.wait()


@asynccontextmanager
async def serving(dsn: str, *, port: int = 0, **settings: object) -> AsyncGenerator[Served]:
    """`penstock serve`."""
    given: dict[str, object] = {"grpc_port": port, "rest_port": 0, "bind": "127.0.0.1", "authentication": False}
    found = Settings(postgres_dsn=Secret(dsn), **cast(Any, {**given, "metrics_enabled": False, **settings}))
    sockets = bind(found, ["REST", "gRPC"])
    at, stopping = f"grpc://{address(sockets['gRPC'])}", Stopping()
    async with trio.open_nursery() as nursery:

        async def run(task_status: trio.TaskStatus[Engine]) -> None:
            await Node(found, dsn, sockets, make_gate(found), task_status.started).run(stopping)
            served.ended.set()

        engine: Engine = await nursery.start(run)
        served = Served(engine, at, address(sockets["REST"]), stopping, nursery.cancel_scope)
        yield served
        stopping.asked.set()
