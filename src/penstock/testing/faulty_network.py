"""A TCP proxy that breaks things: between an engine and PostgreSQL, a worker and an engine, or anything else.

`serve` a `FaultyProxy` in a Trio nursery and let the client connect to its port. Faults are switched on and off while
it runs: delays, cuts in the middle of a message, half-closed connections, black holes, refused and reordered connects.
Every choice of a byte or a delay comes from one seeded source. For tests; must know nothing of what passes through.
"""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import trio

CHUNK_MAX_BYTES = 65_536
CONNECTS_MAX_WAIT_S = 1.0
"""A connect that is to be overtaken by others and is not goes on after this time."""
_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)

Connect = Callable[[], Awaitable[trio.SocketStream]]


def tcp(host: str, port: int) -> Connect:
    """What is behind a proxy: a TCP port."""

    async def connect() -> trio.SocketStream:
        return await trio.open_tcp_stream(host, port)

    return connect


def unix(path: str) -> Connect:
    """What is behind a proxy: a Unix socket, such as PostgreSQL's."""

    async def connect() -> trio.SocketStream:
        return await trio.open_unix_socket(path)

    return connect


@dataclass(eq=False)
class ProxiedConnection:
    """One connection through the proxy."""

    client: trio.SocketStream
    server: trio.SocketStream
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    half_closed: bool = False
    """Whether nothing goes up to the server any more, which has been told so."""
    ended_by_us: bool = False


class FaultyProxy:
    """A proxy before ``connect`` (`tcp`, `unix`). Nothing is wrong until a fault is switched on.

    ``counts`` tells what was done so far, by name. All methods but `serve` return at once.
    """

    def __init__(self, connect: Connect, *, seed: int = 0) -> None:
        self.port = 0
        self.counts: Counter[str] = Counter()
        self._connect = connect
        self._random = random.Random(seed)
        self._links: set[ProxiedConnection] = set()
        self._delay_s = (0.0, 0.0)
        self._refusing = False
        self._holding = False
        self._moving = trio.Event()
        self._moving.set()
        self._cuts = 0
        self._reordering = 0
        self._turn: list[trio.Event] = []
        self._let_go: list[trio.Event] = []

    @property
    def open_links(self) -> int:
        """Connections that pass through now."""
        return len(self._links)

    async def serve(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen on a free port of 127.0.0.1 (also in ``port``) until cancelled; then all connections are cut."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started(self.port)
        await trio.serve_listeners(self._handle, listeners)

    # -- faults

    def delay(self, least_s: float, most_s: float) -> None:
        """Hold back every piece of data, in both directions, for a time between these; 0, 0 ends it."""
        self._delay_s = (least_s, most_s)

    def refuse(self, refusing: bool = True) -> None:
        """Reset every new connection."""
        self._refusing = refusing

    def black_hole(self, holding: bool = True) -> None:
        """Let nothing pass, in silence: connections are accepted and stay open. What came meanwhile passes after."""
        self._holding = holding
        if holding:
            if self._moving.is_set():
                self._moving = trio.Event()
        else:
            self._moving.set()

    def cut(self, share: float = 1.0) -> int:
        """Reset that share of the open connections, at least one; how many there were."""
        links = sorted(self._links, key=id)
        chosen = self._random.sample(links, min(len(links), max(1, round(share * len(links)))))
        for link in chosen:
            self._end(link)
        self.counts["connections cut"] += len(chosen)
        return len(chosen)

    def cut_mid_message(self, times: int = 1) -> None:
        """Of the next pieces of data, as many as ``times``: pass a part of each on, then reset its connection."""
        self._cuts = times

    def half_close(self) -> int:
        """Tell the servers of all open connections that their clients send no more; answers still pass."""
        changed = 0
        for link in self._links:
            if not link.half_closed:
                link.half_closed = True
                changed += 1
                with suppress(*_BROKEN):
                    link.server.socket.shutdown(socket.SHUT_WR)
        self.counts["connections half closed"] += changed
        return changed

    def reorder_connects(self, count: int) -> None:
        """Hold new connects until there are ``count`` (or a second is over), then let them go on in another order."""
        self._reordering = count
        if not count:
            self._release_connects()

    def heal(self) -> None:
        """End all faults; connections that live go on."""
        self.delay(0, 0)
        self.refuse(refusing=False)
        self.black_hole(holding=False)
        self._cuts = 0
        self.reorder_connects(0)

    # -- passing on

    def _end(self, link: ProxiedConnection) -> None:
        link.ended_by_us = True
        link.scope.cancel()

    def _release_connects(self) -> None:
        waiting, self._turn = self._turn, []
        order = list(waiting)
        while order == waiting and len(waiting) > 1:
            self._random.shuffle(order)
        self._let_go += order
        if self._let_go:
            self._let_go[0].set()

    def _next_turn(self, event: trio.Event) -> None:
        """One has connected, the next may: tasks that are let go together run in any order."""
        if event in self._let_go:
            self._let_go.remove(event)
        if self._let_go:
            self._let_go[0].set()

    async def _wait_turn(self, event: trio.Event) -> None:
        self._turn.append(event)
        if len(self._turn) >= self._reordering:
            self.counts["connects reordered"] += len(self._turn)
            self._release_connects()
        with trio.move_on_after(CONNECTS_MAX_WAIT_S):
            await event.wait()
        if event in self._turn:
            self._turn.remove(event)

    async def _handle(self, client: trio.SocketStream) -> None:
        self.counts["connections"] += 1
        if self._refusing:
            self.counts["connections refused"] += 1
            _reset(client)
            return
        turn = trio.Event()
        try:
            if self._reordering:
                await self._wait_turn(turn)
            server = await self._connect()
        except OSError:
            _reset(client)
            return
        finally:
            self._next_turn(turn)
        link = ProxiedConnection(client, server)
        self._links.add(link)
        try:
            with link.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pass, link, client, server, nursery.cancel_scope)
                    nursery.start_soon(self._pass, link, server, client, nursery.cancel_scope)
        finally:
            self._links.discard(link)
            if link.ended_by_us:
                _reset(client)
                _reset(server)
            else:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(client)
                    await trio.aclose_forcefully(server)

    async def _pass(
        self, link: ProxiedConnection, source: trio.SocketStream, target: trio.SocketStream, both: trio.CancelScope
    ) -> None:
        with suppress(*_BROKEN):
            while chunk := await source.receive_some(CHUNK_MAX_BYTES):
                await self._hold_back()
                if source is link.client and link.half_closed:
                    continue
                if self._cuts > 0:
                    self._cuts -= 1
                    await target.send_all(chunk[: self._random.randrange(len(chunk))])
                    self.counts["messages cut"] += 1
                    self._end(link)
                    return
                await target.send_all(chunk)
            with suppress(*_BROKEN):
                await target.send_eof()
            if source is link.client:  # a client that closed may still read; a server that closed is done
                return
        both.cancel()

    async def _hold_back(self) -> None:
        least_s, most_s = self._delay_s
        if most_s > 0:
            self.counts["pieces delayed"] += 1
            await trio.sleep(self._random.uniform(least_s, most_s))
        if self._holding:
            self.counts["pieces held"] += 1
            await self._moving.wait()


def _reset(stream: trio.SocketStream) -> None:
    """Close with a reset instead of an orderly end."""
    with suppress(OSError):
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()
