"""Limits of calls and connections per token and per address: off by default, and each by itself."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack

import pytest
import trio
from grpclib.const import Handler, Status

from penstock.access import limits as limits_module
from penstock.access.identity import Identity
from penstock.access.limits import CallLimits, SharedRate, make_limits
from penstock.access.roles import read_grant
from penstock.http import HttpLimits, HttpServer
from penstock.http.hypercorn_seam import HypercornServer
from penstock.net.accept import PerAddress
from penstock.net.addresses import host_of
from penstock.rpc.limits import RpcLimits
from penstock.rpc.methods import unary
from penstock.rpc.problems import status_of
from penstock.rpc.server import GrpcServer
from penstock.settings import Settings
from penstock.wire.model import PollRequest
from tests.access.people import bearer, make_gate
from tests.rest.scripted import Rest, ScriptedEngine
from tests.waiting import wait_until

POLL = "/workflow.v1.WorkflowEngine/PollJobs"


def limits(**settings: float) -> CallLimits:
    made = make_limits(Settings(**settings))  # type: ignore[arg-type]  # numbers  # pyright: ignore[reportArgumentType] - a stand-in
    assert made is not None
    return made


def known(name: str, key: str = "") -> Identity:
    return Identity.of(name, read_grant("viewer"), key=key or f"token:{name}")


def test_nothing_is_limited_by_default() -> None:
    assert make_limits(Settings()) is None


async def test_each_token_has_calls_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    books = limits(token_max_calls_per_second=2)
    assert [books.enter(known("a")) is None for _ in range(3)] == [True, True, False]
    assert books.enter(known("b")) is None
    await trio.sleep(0.5)
    assert books.enter(known("a")) is None
    assert books.enter(known("a")) == "more than 2 calls per second come from a"


async def test_less_than_one_call_a_second_lets_the_first_in() -> None:
    books = limits(token_max_calls_per_second=0.5)
    assert [books.enter(known("a")) is None for _ in range(2)] == [True, False]


async def test_each_address_has_calls_of_its_own_whoever_calls() -> None:
    books = limits(address_max_calls_per_second=1)
    assert books.take("1.1.1.1") is None
    assert books.take("1.1.1.1") == "more than 1 calls per second come from this address"
    assert books.take("2.2.2.2") is None
    assert books.take(None) is None


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a socket's path", "a socket's path"),
    ],
)
def test_a_host_is_an_address_or_an_ipv6_network(address: str, host: str) -> None:
    assert host_of(address) == host


async def test_an_ipv6_host_gets_no_calls_by_changing_its_address() -> None:
    books = limits(address_max_calls_per_second=1)
    assert books.take("2001:db8:1:2::1") is None
    assert books.take("2001:db8:1:2:ffff::2") is not None
    assert books.take("2001:db8:1:3::1") is None


def test_an_ipv6_host_gets_no_connections_by_changing_its_address() -> None:
    book = PerAddress(1)
    with book.counted("2001:db8:1:2::1") as first, book.counted("2001:db8:1:2::2") as second:
        assert (first, second) == (True, False)
    with book.counted("2001:db8:1:2::3") as later:
        assert later


async def test_one_host_leaves_others_what_needs_no_proof(autojump_clock: trio.testing.MockClock) -> None:
    rate = SharedRate(4, 2)
    assert [rate.take("10.0.0.1") for _ in range(50)].count(True) == 2
    assert [rate.take(f"10.0.0.{number}") for number in (2, 3, 4)] == [True, True, False]
    await trio.sleep(0.5)
    assert rate.take("10.0.0.4")


async def test_running_calls_of_a_token_are_counted_until_they_end() -> None:
    books = limits(token_max_running_calls=1)
    assert books.enter(known("a")) is None
    assert books.enter(known("a")) == "1 calls of a run already"
    books.leave(known("a"))
    assert books.enter(known("a")) is None
    fleet = known("network:10.0.0.0/8", "network:10.0.0.0/8")
    assert [books.enter(fleet) for _ in range(3)] == [None] * 3


async def test_the_books_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "BOOK_MAX_ITEMS", 3)
    books = limits(address_max_calls_per_second=1)
    for number in range(10):
        assert books.take(f"10.0.0.{number}") is None
    assert len(books._per_address._allowances) == 3
    assert books.take("10.0.0.9") is not None


async def test_rest_answers_429_with_a_time_and_never_for_health() -> None:
    api = Rest(ScriptedEngine(authentication=True), gate=make_gate(), limits=limits(token_max_calls_per_second=1))
    headers = {"Authorization": bearer("viewer")}
    assert (await api.send("GET", "/v1/definitions", headers=headers)).status == 200
    over = await api.send("GET", "/v1/definitions", headers=headers)
    assert over.error == (429, "resource-exhausted", "more than 1 calls per second come from token:viewer")
    assert over.headers["retry-after"] == "1"
    for _ in range(3):
        assert (await api.send("GET", "/healthz", headers=headers)).status == 200


async def test_a_parked_poll_counts_as_running_until_it_is_answered() -> None:
    engine = ScriptedEngine(authentication=True)
    api = Rest(engine, gate=make_gate(), limits=limits(token_max_running_calls=1))
    parked, go_on = trio.Event(), trio.Event()

    async def poll(_request: object) -> list[object]:
        parked.set()
        await go_on.wait()
        return []

    engine.on("jobs.poll", poll)
    body = {"workerId": "w", "jobTypes": ["a"]}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: api.post("/v1/jobs/poll", body, Authorization=bearer("worker")))
        await parked.wait()
        assert (await api.post("/v1/jobs/poll", body, Authorization=bearer("worker"))).status == 429
        go_on.set()
    assert (await api.post("/v1/jobs/poll", body, Authorization=bearer("worker"))).status == 200


class Quick:
    def __mapping__(self) -> dict[str, Handler]:
        async def run(_request: PollRequest, _call: object) -> PollRequest:
            return PollRequest()

        return {POLL: unary(run, PollRequest, PollRequest)}


async def test_grpc_answers_resource_exhausted() -> None:
    from tests.access.test_rpc_gate import call, connected, proof

    server = GrpcServer(
        [Quick()], status_of=status_of, gate=make_gate(),
        call_limits=limits(token_max_calls_per_second=1),
    )  # fmt: skip
    with trio.fail_after(30):
        async with connected(server) as client:
            assert (await call(client, POLL, proof("worker"))).status == 0
            assert (await call(client, POLL, proof("worker"))).status == Status.RESOURCE_EXHAUSTED.value
            assert (await call(client, POLL, proof("admin"))).status == 0


@pytest.mark.parametrize("kind", ["native", "hypercorn", "grpc"])
async def test_an_address_at_its_connection_limit_waits_until_one_ends(kind: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    async def app(scope: dict[str, object], receive: object, send: object) -> None:
        await trio.sleep_forever()

    async def is_open(stream: trio.SocketStream) -> bool:
        """A server says nothing first (but for gRPC's settings); a closed connection says so at once."""
        with trio.move_on_after(0.5):
            return bool(await stream.receive_some(1))
        return True

    with trio.fail_after(90):
        async with trio.open_nursery() as nursery:
            if kind == "grpc":
                rpc = GrpcServer([Quick()], limits=RpcLimits(connections_per_address=2))
                await nursery.start(rpc.serve, [listener])
            else:
                make = HttpServer if kind == "native" else HypercornServer
                await nursery.start(make(HttpLimits(max_connections_per_address=2)).serve, app, [listener])
            async with AsyncExitStack() as stack:

                async def connect() -> trio.SocketStream:
                    return await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))

                first, second = await connect(), await connect()
                assert await is_open(first)
                assert await is_open(second)
                third = await connect()
                assert await third.receive_some(1) == b"", "it was let in"
                await first.aclose()

                async def is_let_in() -> bool:
                    return await is_open(await connect())

                await wait_until(is_let_in)
            nursery.cancel_scope.cancel()
