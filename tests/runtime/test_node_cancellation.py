"""A whole engine process's service, cancelled at every point of its start, of its service and of its shutdown.

As when one of its children fails. After each run: no task, file, port or session is left, and the next one starts.
The suite takes every n-th point; `-m chaos` takes all of them.
"""

from __future__ import annotations

import msgspec
import psycopg
import pytest
import trio

from penstock.runtime.node import Node, bind
from penstock.runtime.service import PURPOSES
from penstock.runtime.stopping import Stopping
from penstock.settings import Settings
from penstock.testing.cancellation import CancelledAttempt, Holdings, Operation, cancel_everywhere
from penstock.testing.definitions import linear
from penstock.testing.invariants import assert_invariants
from tests.waiting import wait_until

STRIDE = 13
"""A prime, so that the points taken don't keep step with anything that comes round and round."""
POINTS_MAX = 20_000
LAZY = Holdings(tasks=0, threads=0, files=2)
"""What is opened once and kept, by libraries that the first run imports."""


async def request(port: int, method: str, path: str, body: object = None) -> bytes:
    """One exchange; the whole answer."""
    content = b"" if body is None else msgspec.json.encode(body)
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(head.encode() + content)
        return b"".join([bytes(chunk) async for chunk in stream])


class Announced(Stopping):
    """Tells when the node has begun to serve."""

    def __init__(self) -> None:
        self.begun = trio.Event()
        super().__init__()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "serving" and value:
            self.begun.set()


async def live(dsn: str) -> None:
    """Start a node, use it, have it stop."""
    settings = Settings(
        bind="127.0.0.1", rest_port=0, grpc_port=0, metrics_port=0, shutdown_grace_seconds=1, db_max_conns=4
    )
    stopping = Announced()
    sockets = bind(settings, PURPOSES)
    port = sockets["REST"][0].getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Node(settings, dsn, sockets).run, stopping)
        await stopping.begun.wait()
        assert b" 201 " in await request(port, "POST", "/v1/definitions", linear(1))
        assert b" 201 " in await request(port, "POST", "/v1/instances", {"definitionId": "linear"})
        poll = {"workerId": "w", "jobTypes": ["work"]}
        assert b'"jobs":[{' in await request(port, "POST", "/v1/jobs/poll", poll)
        stopping.asked.set()


def sessions(dsn: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            "SELECT pid, state, query FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchall()


async def go_through(dsn: str, first: int, stride: int) -> None:
    async def prepare() -> Operation[None]:
        return lambda: live(dsn)

    async def after(attempt: CancelledAttempt[None]) -> None:
        async def alone() -> bool:
            return not sessions(dsn)

        await wait_until(alone)

    await live(dsn)
    points = await cancel_everywhere(prepare, after, first=first, stride=stride, may_grow=LAZY, points_max=POINTS_MAX)
    assert points.points * stride > 300, points
    assert_invariants(dsn)


@pytest.mark.slow(reason="stops an engine at many points")
@pytest.mark.parametrize("first", [7])
async def test_a_node_cancelled_at_many_points(database_dsn: str, first: int) -> None:
    await go_through(database_dsn, first, STRIDE)


@pytest.mark.chaos
@pytest.mark.timeout(3_600)
async def test_a_node_cancelled_at_every_point(database_dsn: str) -> None:
    await go_through(database_dsn, 1, 1)
