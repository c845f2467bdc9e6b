"""A TCP proxy before PostgreSQL's Unix socket, to hold answers back, to lose them, and to look at the packets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import trio
from psycopg.conninfo import conninfo_to_dict, make_conninfo

IDLE = b"Z\x00\x00\x00\x05I"
"""ReadyForQuery outside a transaction: what was sent before is committed."""


def _fatal() -> bytes:
    """What a server says before it ends a session at an administrator's word."""
    fields = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
    return b"E" + (len(fields) + 4).to_bytes(4, "big") + fields


def messages(answer: bytes) -> list[bytes]:
    """The messages of a server's answer: a letter, the length of the rest, the rest."""
    found: list[bytes] = []
    while answer:
        size = 1 + int.from_bytes(answer[1:5], "big")
        found.append(answer[:size])
        answer = answer[size:]
    return found


@dataclass
class Cut:
    """One connection that is to break: see `Proxy.cut_at`."""

    pattern: bytes
    committed: bool
    received: int = 0
    """So many messages of the answer come through."""
    fatal: bool = False
    """Whether the server then says that an administrator ended the session, as it does inside a COMMIT."""
    late: trio.Event | None = None
    """When the server gets it, long after the client's connection has broken."""
    done: trio.Event = field(default_factory=trio.Event)
    answer: bytes = b""
    """The whole answer, once it is done."""

    @property
    def passed(self) -> bytes:
        """What of the answer the client gets."""
        return b"".join(messages(self.answer)[: self.received]) + (_fatal() if self.fatal else b"")


@dataclass
class Link:
    """One proxied connection."""

    client: trio.SocketStream
    server: trio.SocketStream
    sent: list[bytes] = field(default_factory=list)
    """What the client sent, as it came."""
    holding: bool = False
    held: trio.Event = field(default_factory=trio.Event)
    """Set once an answer of the server is held back."""
    scope: trio.CancelScope | None = None
    cut: Cut | None = None
    """Whose answer is being swallowed."""
    released: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)

    def hold(self) -> None:
        """From now on keep the server's answers to ourselves."""
        self.holding = True

    def end(self) -> None:
        """Break the connection now."""
        assert self.scope is not None
        self.scope.cancel()

    def release(self) -> None:
        self.holding = False
        self.released.set()


class Proxy:
    """`serve` it in a nursery; then ``dsn`` goes through it, by host name."""

    def __init__(self, dsn: str) -> None:
        self._upstream = conninfo_to_dict(dsn)
        self.dsn = ""
        self.links: list[Link] = []
        self.hold_new = False
        """Whether new connections get no answer at all."""
        self._cuts: list[Cut] = []
        self._changed = trio.Condition()

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        there: dict[str, Any] = {**self._upstream, "host": "localhost", "port": port, "sslmode": "disable"}
        self.dsn = make_conninfo(**there)
        task_status.started()
        await trio.serve_listeners(self._handle, listeners)

    def cut_late(self, pattern: bytes) -> Cut:
        """Break the next connection that sends ``pattern``, and let the server have that when ``late`` is set: its
        session lives on meanwhile. ``done`` is set once the server has answered it or ended the session."""
        cut = Cut(pattern, committed=False, late=trio.Event())
        self._cuts.append(cut)
        return cut

    def cut_at(self, pattern: bytes, *, committed: bool, received: int = 0, fatal: bool = False) -> Cut:
        """Break the next connection that sends ``pattern``: once the server has committed it and before the client
        hears of it, or before the server gets it. ``heard`` messages of the answer come through, and with ``fatal``
        the word that the session was ended."""
        cut = Cut(pattern, committed, received, fatal)
        self._cuts.append(cut)
        return cut

    async def wait_link(self, number: int) -> Link:
        """The connection with this number, counted from 0, when it has come."""
        async with self._changed:
            while len(self.links) <= number:
                await self._changed.wait()
        return self.links[number]

    async def _handle(self, client: trio.SocketStream) -> None:
        path = f"{self._upstream['host']}/.s.PGSQL.{self._upstream['port']}"
        server = await trio.open_unix_socket(path)
        link = Link(client, server, holding=self.hold_new)
        self.links.append(link)  # at once: who lets go of all links must not miss one
        async with self._changed:
            self._changed.notify_all()
        async with client, server, trio.open_nursery() as nursery:
            link.scope = nursery.cancel_scope
            nursery.start_soon(self._upward, link, nursery.cancel_scope)
            nursery.start_soon(self._downward, link, nursery.cancel_scope)
        link.ended.set()

    async def _upward(self, link: Link, scope: trio.CancelScope) -> None:
        try:
            async for chunk in link.client:
                link.sent.append(bytes(chunk))
                cut = next((cut for cut in self._cuts if cut.pattern in chunk), None)
                if cut is not None:
                    self._cuts.remove(cut)
                    if cut.late is not None:
                        link.cut = cut
                        await link.client.aclose()
                        await cut.late.wait()
                        await link.server.send_all(chunk)
                        await cut.done.wait()
                        break
                    if not cut.committed:
                        cut.done.set()
                        break
                    link.cut = cut
                await link.server.send_all(chunk)
        except trio.BrokenResourceError:
            pass
        scope.cancel()

    async def _downward(self, link: Link, scope: trio.CancelScope) -> None:
        try:
            async for chunk in link.server:
                if link.cut is not None:
                    link.cut.answer += chunk
                    if link.cut.late is not None:
                        if chunk.endswith(IDLE):
                            link.cut.done.set()
                        continue
                    if not chunk.endswith(IDLE):
                        continue
                    await link.client.send_all(link.cut.passed)
                    link.cut.done.set()
                    break
                await self._hold(link)
                await link.client.send_all(chunk)
        except trio.BrokenResourceError:
            pass
        if link.cut is not None and link.cut.late is not None:
            await link.cut.late.wait()
            link.cut.done.set()
        await self._hold(link)
        scope.cancel()

    async def _hold(self, link: Link) -> None:
        if link.holding:
            link.held.set()
            await link.released.wait()
