"""Connections that ask for nothing keep no caller out: silent ones, half-sent requests, and many that prove nothing."""

from __future__ import annotations

import select
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from itertools import product

import grpc
import pytest
import trio
import trio.testing

from penstock.http import HttpLimits, HttpServer
from penstock.http.asgi import ON_PROVED, Receive, Scope, Send
from penstock.http.hypercorn_seam import HypercornServer
from penstock.http.listen import listen
from penstock.net.accept import BEGUN_PER_ITERATION, CHECKED_PER_ITERATION, CROWD_CONNECTIONS, Door, Guest
from penstock.rpc.health import Health
from penstock.rpc.limits import RpcLimits
from penstock.rpc.server import GrpcServer
from penstock.wire.http2_frames import PREFACE
from tests.shares import mostly_slow

ROOM = 40
CROWD = 3 * ROOM
PATIENCE_S = 15.0
"""A full server waited for 30 s of idleness before, and never ended these."""
HALF_HEAD = b"GET /v1/instances HTTP/1.1\r\nhost: localhost\r\nx-half: "
HALF_BODY = b"POST /v1/instances HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000\r\n\r\n{"
ANONYMOUS = b"GET /v1/instances HTTP/1.1\r\nhost: localhost\r\n\r\n"
KNOWN = b"GET /v1/instances HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer good\r\n\r\n"
GREETING = PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


async def gated(scope: Scope, receive: Receive, send: Send) -> None:
    """As an engine with authentication."""
    known = (b"authorization", b"Bearer good") in list(scope["headers"])
    if known:
        scope["extensions"][ON_PROVED]()
    await send({"type": "http.response.start", "status": 200 if known else 401, "headers": []})
    await send({"type": "http.response.body", "body": b"x"})


@asynccontextmanager
async def serving(kind: str, room: int = ROOM, limits: HttpLimits | None = None) -> AsyncGenerator[int]:
    """A server with little room, or with other limits; its port."""
    (listener,) = listen("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        if kind == "grpc":
            health = Health(set())
            health.set_serving(True)
            await nursery.start(GrpcServer([health], limits=RpcLimits(connections=room)).serve, [listener])
        else:
            make = HttpServer if kind == "native" else HypercornServer
            server = make(limits or HttpLimits(max_connections=room), asking_proves=False)
            await nursery.start(server.serve, gated, [listener])
        yield listener.getsockname()[1]
        nursery.cancel_scope.cancel()


def ask(port: int, request: bytes) -> bytes:
    """The first line of the answer to a new connection's request."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
        sock.sendall(request)
        return sock.recv(12)


def check_health(port: int) -> bytes:
    """As a gRPC client does, on a new connection."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        answer: bytes = check(b"", timeout=PATIENCE_S, wait_for_ready=True)
        return answer


def come(stack: ExitStack, port: int, count: int, sent: bytes, hosts: int = 1) -> list[socket.socket]:
    """So many connections from so many addresses, which send so much each."""
    crowd: list[socket.socket] = []
    for number in range(count):
        sock = stack.enter_context(socket.socket())
        sock.bind((f"127.0.{1 + number % hosts}.1", 0))
        sock.connect(("127.0.0.1", port))
        sock.sendall(sent)
        crowd.append(sock)
    return crowd


SENT = {"silent": b"", "head": HALF_HEAD, "body": HALF_BODY, "hello": b"\x16\x03\x01"}
GRPC_SENT = {"silent": b"", "cut": PREFACE[:10], "greeted": GREETING}
WAITS = "each call waits until a crowd may be ended"


@pytest.mark.parametrize(
    ("kind", "sent", "hosts"),
    mostly_slow(
        product(["native", "hypercorn"], SENT.values(), [1, 50]),
        quick=[("native", HALF_HEAD, 1), ("native", b"", 50), ("hypercorn", HALF_BODY, 1)],
        reason=WAITS,
    ),
    ids=[f"{kind}-{sent}-{hosts}" for kind, sent, hosts in product(["native", "hypercorn"], SENT, [1, 50])],
)
async def test_a_known_caller_is_answered_beside_a_crowd(kind: str, sent: bytes, hosts: int) -> None:
    async with serving(kind) as port:
        with ExitStack() as stack:
            come(stack, port, CROWD, sent, hosts)
            for _ in range(3):
                assert await trio.to_thread.run_sync(ask, port, KNOWN) == b"HTTP/1.1 200"


@pytest.mark.parametrize(("sent", "reported"), [(HALF_HEAD, b"HTTP/1.1 408"), (b"GET", b"HTTP/1.1 408"), (b"", b"")])
@pytest.mark.parametrize("kind", ["native", "hypercorn"])
async def test_whose_time_is_over_at_the_door_is_reported(kind: str, sent: bytes, reported: bytes) -> None:
    limits = HttpLimits(header_timeout_seconds=0.4)
    async with serving(kind, limits=limits) as port:
        with ExitStack() as stack:
            come(stack, port, CROWD_CONNECTIONS, b"")  # these are served
            crowd = come(stack, port, 20, sent)
            assert {await trio.to_thread.run_sync(sock.recv, 12) for sock in crowd} == {reported}


async def test_who_makes_room_is_closed_without_a_word() -> None:
    async with serving("native", room=2 * CROWD_CONNECTIONS) as port:
        with ExitStack() as stack:
            crowd = come(stack, port, 4 * CROWD_CONNECTIONS, HALF_HEAD)
            assert await trio.to_thread.run_sync(ask, port, KNOWN) == b"HTTP/1.1 200"
            assert await trio.to_thread.run_sync(ask, port, KNOWN) == b"HTTP/1.1 200"
            ended = [sock for sock in crowd if select.select([sock], [], [], 0)[0]]
            said = set[bytes]()
            for sock in ended:
                with suppress(ConnectionResetError):
                    said.add(sock.recv(12))
            assert ended
            assert said <= {b""}


@pytest.mark.parametrize(
    ("sent", "hosts"),
    mostly_slow(product(GRPC_SENT.values(), [1, 50]), quick=[(GREETING, 1), (b"", 50)], reason=WAITS),
    ids=[f"{sent}-{hosts}" for sent, hosts in product(GRPC_SENT, [1, 50])],
)
async def test_a_grpc_client_is_answered_beside_a_crowd(sent: bytes, hosts: int) -> None:
    async with serving("grpc") as port:
        with ExitStack() as stack:
            come(stack, port, CROWD, sent, hosts)
            assert await trio.to_thread.run_sync(check_health, port) == b"\x08\x01"


@pytest.mark.parametrize("kind", ["native", "hypercorn"])
async def test_who_was_refused_makes_room_and_who_is_known_stays(kind: str) -> None:
    async with serving(kind) as port:
        with ExitStack() as stack:
            known = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))

            def ask_again() -> bytes:
                known.sendall(KNOWN)
                answer = known.recv(4_096)
                while answer and not answer.endswith(b"x"):
                    answer += known.recv(4_096)
                return answer[:12]

            assert await trio.to_thread.run_sync(ask_again) == b"HTTP/1.1 200"
            come(stack, port, CROWD, ANONYMOUS)
            assert await trio.to_thread.run_sync(ask, port, KNOWN) == b"HTTP/1.1 200"
            assert await trio.to_thread.run_sync(ask_again) == b"HTTP/1.1 200"


@pytest.mark.parametrize("sent", [b"", HALF_HEAD, HALF_BODY, GREETING], ids=["silent", "head", "body", "greeted"])
@pytest.mark.parametrize("kind", ["native", "hypercorn"])
async def test_the_first_request_has_a_deadline(kind: str, sent: bytes) -> None:
    (listener,) = listen("127.0.0.1", 0)
    make = HttpServer if kind == "native" else HypercornServer
    limits = HttpLimits(header_timeout_seconds=0.2, body_timeout_seconds=0.2, deadline_tick_seconds=0.05)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(make(limits).serve, gated, [listener])
            async with await trio.open_tcp_stream("127.0.0.1", listener.getsockname()[1]) as silent:
                if sent:
                    await silent.send_all(sent)
                while await silent.receive_some():
                    pass
            nursery.cancel_scope.cancel()


# -- the door by itself


class Hall:
    """A door with guests that note their end."""

    def __init__(self, most: int, per_host: int) -> None:
        self.ended: list[str] = []
        self.door = Door(
            most, unproved_per_host=per_host, is_whole=bool, first_request_s=10, idle_s=0.0, end_idle=self._nothing,
        )  # fmt: skip

    async def _nothing(self) -> None:
        pass

    def let_in(self, name: str, host: str, *, ends: Callable[[], bool] = lambda: True) -> Guest:
        def start(_sock: socket.socket, guest: Guest) -> None:
            def end() -> bool:
                if ends():
                    self.ended.append(name)
                    return True
                return False

            guest.end = end

        guest = self.door.let_in(start, Socket(), host)  # type: ignore[arg-type] - all that a door needs  # pyright: ignore[reportArgumentType] - as said
        assert guest is not None
        return guest


class Socket:
    """Nobody reads it."""


async def test_at_its_limit_a_host_loses_its_oldest(autojump_clock: trio.testing.MockClock) -> None:
    hall = Hall(100, 2)
    for name, host in [("a", "10.0.0.1"), ("other", "10.0.0.2"), ("b", "10.0.0.1"), ("c", "10.0.0.1")]:
        hall.let_in(name, host)
    assert hall.ended == ["a"]


async def test_of_ipv6_a_network_is_one_host(autojump_clock: trio.testing.MockClock) -> None:
    hall = Hall(100, 2)
    for number in range(4):
        hall.let_in(str(number), f"2001:db8:1:2::{number + 1}")
    hall.let_in("neighbour", "2001:db8:1:3::1")
    assert hall.ended == ["0", "1"]


async def test_who_is_known_or_served_is_not_ended(autojump_clock: trio.testing.MockClock) -> None:
    hall = Hall(100, 3)
    hall.let_in("known", "10.0.0.1").prove()
    hall.let_in("served", "10.0.0.1", ends=lambda: False)
    for name in "abc":
        hall.let_in(name, "10.0.0.1")
    assert hall.ended == ["a"]


class Lobby:
    """A door with its tasks; notes who is served, in order."""

    def __init__(self, stack: ExitStack, per_host: int = 1_000) -> None:
        self.served: list[str] = []
        self._stack = stack
        self.door = Door(
            10_000, unproved_per_host=per_host, is_whole=bool, first_request_s=60, idle_s=0.0, end_idle=self._nothing,
        )  # fmt: skip

    async def _nothing(self) -> None:
        pass

    def come(self, name: str, host: str, sent: bytes = b"x") -> Guest:
        ours, theirs = socket.socketpair()
        self._stack.callback(ours.close)
        theirs = self._stack.enter_context(theirs)
        theirs.send(sent)

        def start(_sock: socket.socket, guest: Guest) -> None:
            self.served.append(name)
            guest.end = lambda: True

        guest = self.door.let_in(start, ours, host)
        assert guest is not None
        return guest


@asynccontextmanager
async def crowded(per_host: int = 1_000) -> AsyncGenerator[Lobby]:
    """One host has asked for nothing so often that others wait at the door."""
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            lobby = Lobby(stack, per_host)
            nursery.start_soon(lobby.door.run)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(CROWD_CONNECTIONS):
                lobby.come("greedy", "10.0.0.1")
            lobby.served.clear()
            yield lobby
            nursery.cancel_scope.cancel()


async def test_in_a_crowd_a_host_of_whom_nobody_is_served_comes_first() -> None:
    async with crowded() as lobby:
        for _ in range(100):
            lobby.come("greedy", "10.0.0.1")
        for name in ("b", "c", "b"):
            lobby.come(name, f"10.0.0.{ord(name)}")
        assert lobby.served == []
        while len(lobby.served) < 10:
            await trio.lowlevel.checkpoint()
        assert lobby.served[:5] == ["b", "c", "greedy", "b", "greedy"], "then they take turns"


async def test_ever_new_hosts_shut_none_out() -> None:
    async with crowded() as lobby:
        lobby.come("old", "10.0.0.1")
        for n in range(200):
            lobby.come("new", f"10.1.0.{n}")
        while len(lobby.served) < 10:
            await trio.lowlevel.checkpoint()
        assert "old" in lobby.served[:4]


async def test_as_long_as_some_make_room_fewer_are_served_in_a_turn() -> None:
    async with crowded(per_host=CROWD_CONNECTIONS) as lobby:
        pace = lobby.door._pace
        assert pace == BEGUN_PER_ITERATION
        for _ in range(100):
            lobby.come("greedy", "10.0.0.1")
        assert lobby.door._pace == 1
        for _ in range(3):
            lobby.come("known", "10.0.0.2").prove()
        assert lobby.door._pace == 4


async def test_a_door_that_is_closed_serves_nobody_more() -> None:
    async with crowded() as lobby:
        before = lobby.door.open
        for sent in (b"x", b"", b"x"):
            lobby.come("late", "10.0.0.2", sent)
        lobby.door.close()
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        assert (lobby.served, lobby.door.held, lobby.door.open) == ([], 0, before)


async def test_who_has_left_the_door_is_not_served() -> None:
    async with crowded() as lobby:
        before = lobby.door.open
        guest = lobby.come("late", "10.0.0.2", b"")
        assert (guest.at_door, lobby.door.held) == (True, 1)
        ours, theirs = socket.socketpair()
        theirs.close()
        assert lobby.door.let_in(lambda *_: lobby.served.append("gone"), ours, "10.0.0.3") is None
        assert (lobby.served, lobby.door.open) == ([], before + 1)


async def test_who_leaves_while_the_door_is_looked_after_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with crowded() as lobby:
        door, before = lobby.door, lobby.door.open
        late = [lobby.come("late", "10.0.0.2", b"") for _ in range(CHECKED_PER_ITERATION + 10)]
        monkeypatch.setattr(door, "_first_request_s", 0.0)  # their time is over

        async def leave() -> None:
            for guest in late[-10:]:
                door._on_gone(guest)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(door._watch_held)
            nursery.start_soon(leave)
        await trio.testing.wait_all_tasks_blocked()
        assert (door.held, door.open) == (0, before)
