"""With authentication, calls that go from the bytes to the group-commit queues are let pass, refused and ended as by
the handlers."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import trio

from penstock.access.gate import Gate
from penstock.access.limits import CallLimits
from penstock.access.roles import read_grant
from penstock.access.tokens import KnownToken, make_token
from penstock.engine.queues.claims import Claims
from penstock.loop.poller import HAVE_EPOLL
from penstock.rest import inline_handler
from penstock.settings import Settings
from penstock.testing.definitions import linear
from tests.access.people import bearer, make_gate
from tests.http.raw import Answer
from tests.runtime.conftest import StartLocal
from tests.runtime.local_engine import LocalEngine
from tests.runtime.test_inline_calls import POLL, WAITING_POLL, Both, served, shown
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not HAVE_EPOLL, reason="needs epoll")
POLLS, COMPLETIONS = "/v1/jobs/poll", "/v1/jobs/{id}/complete"
DONE = b'{"workerId":"w"}'


@pytest.fixture
async def engine(start_local: StartLocal) -> LocalEngine:
    engine = await start_local()
    await engine.upload(linear(1))
    return engine


def proof(role: str) -> tuple[str, ...]:
    return (f"Authorization: {bearer(role)}",) if role else ()


async def known(both: Both, *lines: str, body: bytes = POLL) -> None:
    """Headers and poll."""
    for client in (both.inline, both.plain):
        for _ in range(2):
            await both.ask(client, POLLS, body, *lines)


async def ask_both(engine: LocalEngine, both: Both, *lines: str) -> list[Answer]:
    """A poll and a completion by each; both are answered alike, and are not told apart by how they went."""
    said: list[list[Answer]] = []
    for client in (both.plain, both.inline):
        await engine.start("linear")
        both.taken.clear()
        polled = await both.ask(client, POLLS, POLL, *lines)
        leased = polled if polled.status == 200 else await both.ask(both.plain, POLLS, POLL, *proof("worker"))
        path = COMPLETIONS.replace("{id}", leased.json()["jobs"][0]["id"])
        said.append([polled, await both.ask(client, path, DONE, *lines)])
    assert [shown(each) for each in said[0]] == [shown(each) for each in said[1]]
    return said[1]


async def test_callers_may_do_the_same_on_both_ways(engine: LocalEngine, monkeypatch: Any) -> None:
    """clerk is a worker of other jobs here, admin one of these among others."""
    gate = make_gate(grants={"clerk": "worker(other)", "admin": "worker(work|other)"})
    async with served(engine, monkeypatch, gate) as both:
        for role, status in (("worker", 200), ("admin", 200), ("clerk", 403), ("viewer", 403), ("", 401)):
            await known(both, *proof("worker"))
            await known(both, *proof(role))
            polled, completed = await ask_both(engine, both, *proof(role))
            assert (polled.status, completed.status) == (status, 204 if status == 200 else status), role
            assert (both.taken == [True, True]) == (status == 200), role


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((*proof("worker"), *proof("worker")), 401),
        ((*proof("viewer"), *proof("worker")), 401),
        (("Authorization: Basic dzp3",), 401),
        (("Authorization: Bearer",), 401),
        (("Cookie: a=b",), 401),
    ],
)
async def test_odd_proofs_are_left_to_the_handler(
    engine: LocalEngine, monkeypatch: Any, lines: tuple[str, ...], status: int
) -> None:
    async with served(engine, monkeypatch, make_gate()) as both:
        await known(both, *proof("worker"))
        await known(both, *lines)
        for answer in await ask_both(engine, both, *lines):
            assert answer.status == status
        assert True not in both.taken


async def test_callers_on_one_connection_are_distinguished(engine: LocalEngine, monkeypatch: Any) -> None:
    async with served(engine, monkeypatch, make_gate()) as both:
        for role, status in 3 * (("worker", 200), ("viewer", 403), ("", 401)):
            for _ in range(3):
                both.taken.clear()
                assert (await both.ask(both.inline, POLLS, POLL, *proof(role))).status == status
                assert status == 200 or True not in both.taken


async def test_a_network_proves_a_caller(engine: LocalEngine, monkeypatch: Any) -> None:
    async with served(engine, monkeypatch, make_gate(trusted_networks=("127.0.0.0/8=worker",))) as both:
        await known(both)
        for answer in await ask_both(engine, both):
            assert answer.status in (200, 204)
        assert both.taken == [True, True]
        await known(both, "Cookie: a=b")
        await ask_both(engine, both, "Cookie: a=b")
        assert True not in both.taken


def gate_of(token: Any, expires_at: float) -> Gate:
    gate = make_gate()
    gate.replace_tokens([KnownToken("x", "x", token.digest, read_grant("worker"), expires_at)])
    return gate


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_a_token_counts_no_longer_once_it_ends(engine: LocalEngine, monkeypatch: Any, how: str) -> None:
    token = make_token()
    gate, line = gate_of(token, math.inf), f"Authorization: Bearer {token.text}"
    async with served(engine, monkeypatch, gate) as both:
        await known(both, line)
        both.taken.clear()
        assert (await both.ask(both.inline, POLLS, POLL, line)).status == 200
        assert both.taken == [True]
        gate.replace_tokens(
            [] if how == "revoked" else [KnownToken("x", "x", token.digest, read_grant("worker"), time.time() - 1)]
        )
        for answer in await ask_both(engine, both, line):
            assert answer.status == 401
        assert both.taken == [False, False]


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_no_job_goes_to_a_token_that_ended(engine: LocalEngine, monkeypatch: Any, how: str) -> None:
    """It ends while the look into the queue is under way, that finds a job."""
    token = make_token()
    gate, line = gate_of(token, time.time() + 1_000), f"Authorization: Bearer {token.text}"
    claim = Claims._claim_for
    reached, go_on = trio.Event(), trio.Event()

    async def held_up(*args: Any) -> bool:
        reached.set()
        await go_on.wait()
        return await claim(*args)

    async with served(engine, monkeypatch, gate) as both, trio.open_nursery() as nursery:
        await known(both, line, body=WAITING_POLL.replace(b"20", b"0.01"))
        await known(both, line, body=POLL)
        await engine.start("linear")
        monkeypatch.setattr(Claims, "_claim_for", held_up)
        both.taken.clear()
        answers: list[Answer] = []

        async def poll() -> None:
            answers.append(await both.ask(both.inline, POLLS, POLL, line))

        nursery.start_soon(poll)
        await reached.wait()
        assert both.taken == [True]
        if how == "revoked":
            gate.replace_tokens([])
        else:
            monkeypatch.setattr(inline_handler, "time", lambda: time.time() + 1_001)
        go_on.set()

        async def is_answered() -> bool:
            return bool(answers)

        await wait_until(is_answered)
        assert answers[0].status == 401
        assert how in answers[0].body.decode()
        monkeypatch.setattr(Claims, "_claim_for", claim)

        async def is_back() -> bool:
            answer = await both.ask(both.plain, POLLS, POLL, *proof("worker"))
            return bool(answer.json()["jobs"])

        await wait_until(is_back)


async def test_calls_that_are_counted_are_left_to_the_handlers(engine: LocalEngine, monkeypatch: Any) -> None:
    limits = CallLimits(Settings(token_max_running_calls=1))
    async with served(engine, monkeypatch, make_gate(), limits) as both:
        await known(both, *proof("worker"))
        await ask_both(engine, both, *proof("worker"))
        assert both.taken == []
