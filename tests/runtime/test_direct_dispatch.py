"""A job that a batch makes and leases to whoever waits for it leaves at once: to a poll that waits without a task in
the turn of the loop in which the database answered, to others in the next one, before anything else is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from penstock.engine.queues.deliveries import Deliveries
from penstock.http import HttpServer, listen
from penstock.http.connection import HttpConnection
from penstock.http.inline_connection import InlineConnection
from penstock.loop.poller import PolledStream
from penstock.rest.app import make_app
from penstock.testing.definitions import linear
from tests.http.raw import RawClient
from tests.rpc.served import Work, served
from tests.runtime.conftest import StartLocal
from tests.runtime.local_engine import LocalEngine
from tests.waiting import wait_until


class Turns(trio.abc.Instrument):
    """What happens, by the turns of the loop: "heard" of a commit, "look" for news and go on, "sleep", "sent"."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self._note(patch, Deliveries, "deliver", lambda *_: "heard")
        self._note(patch, HttpConnection, "send", lambda data: "sent" if b'"jobs":[{' in data else "other")
        self._note(patch, PolledStream, "send_nowait", lambda _: "sent")
        self._note(
            patch, InlineConnection, "answer", lambda *given: "sent" if b'"jobs":[{' in (given[2] or b"") else "other"
        )

    def _note(self, patch: pytest.MonkeyPatch, kind: type, name: str, what: Callable[..., str]) -> None:
        inner = getattr(kind, name)

        def noted(this: Any, first: Any, *rest: Any, **named: Any) -> Any:
            self.seen.append(what(first, *rest))
            return inner(this, first, *rest, **named)

        patch.setattr(kind, name, noted)

    def before_io_wait(self, timeout: float) -> None:
        self.seen.append("look" if timeout <= 0 else "sleep")

    def until_sent(self) -> list[str]:
        """From the last commit that was heard of to its job on the wire."""
        begun = len(self.seen) - self.seen[::-1].index("heard")
        return self.seen[begun : self.seen.index("sent", begun)]


@pytest.fixture
async def engine(start_local: StartLocal) -> LocalEngine:
    engine = await start_local()
    await engine.upload(linear(2))
    return engine


@pytest.mark.parametrize(("known", "turns_between"), [(False, ["look"]), (True, [])])
async def test_to_a_long_poll(
    engine: LocalEngine, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, known: bool, turns_between: list[str]
) -> None:
    monkeypatch.setattr("penstock.rest.jobs.UNWATCHED_SECONDS", 0.0)  # parked with a look-out for its client
    sockets = listen("127.0.0.1", 0)
    await nursery.start(HttpServer().serve, make_app(engine.engine), sockets)
    port = sockets[0].getsockname()[1]
    got: list[str] = []
    body = b'{"workerId":"w2","jobTypes":["work"],"maxJobs":1,"waitSeconds":50}'

    async def poll(client: RawClient) -> None:
        head = b"POST /v1/jobs/poll HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: %d\r\n\r\n" % (port, len(body))
        answer = await client.ask(head + body)
        got.extend(job["stepId"] for job in answer.json()["jobs"])

    async def is_parked() -> bool:
        return len(engine.engine.polls.waiters) == 1

    async with await trio.open_tcp_stream("127.0.0.1", port) as stream, trio.open_nursery() as calls:
        client = RawClient(stream)
        if known:  # such a poll was served before: it waits without a task
            await engine.start("linear")
            await poll(client)
            got.clear()
        await engine.start("linear")
        job = await engine.one("work")
        calls.start_soon(poll, client)
        await wait_until(is_parked)
        turns = Turns(monkeypatch)
        trio.lowlevel.add_instrument(turns)
        await engine.complete(job)
    trio.lowlevel.remove_instrument(turns)
    assert got == ["task-2"]
    assert turns.until_sent() == turns_between
    nursery.cancel_scope.cancel()
    sockets[0].close()


async def test_to_a_stream(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    await engine.start("linear")
    job = await engine.one("work")
    async with served(engine.engine) as server:
        work = await Work.open(server.client, work=1)

        async def is_parked() -> bool:
            return len(engine.engine.polls.waiters) == 1

        await wait_until(is_parked)
        turns = Turns(monkeypatch)
        trio.lowlevel.add_instrument(turns)
        await engine.complete(job)
        (got,) = await work.wait_jobs(1)
        trio.lowlevel.remove_instrument(turns)
        assert got.step_id == "task-2"
        assert turns.until_sent() == ["look"]
        await work.send(end=True)
        await work.ended()
