"""The engine's own HTTP/1.1 server: accepting, deadlines, draining.

Relies on ``HttpConnection`` for everything between one client and the application. Serves HTTP/1.1 only, plain or over
TLS; HTTP/2 is ``hypercorn_seam``'s. Nothing that a client sends may end more than its own connection.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from operator import itemgetter

import trio

from penstock.http.asgi import App
from penstock.http.connection import HttpConnection, Phase
from penstock.http.inline_connection import InlineConnection
from penstock.http.interface import HttpStatistics
from penstock.http.limits import HttpLimits
from penstock.http.refusal import no_turn, too_slow
from penstock.http.request import BodyBudget, is_whole_request
from penstock.http.response import DateHeader, Heads, encode_refusal
from penstock.log.log import get_logger
from penstock.loop.poller import HAVE_EPOLL, PlainStream, Poller, open_stream
from penstock.loop.waking import TasklessQueue
from penstock.net.accept import Door, Guest, PerAddress
from penstock.net.tls import Tls, TlsStream, accept_tls, names_of

EXPIRED_PER_ITERATION = 20
"""Connections whose time is over that are ended in one turn of the loop: 4 ms. Of 10,000 it comes at once."""
CLOSED_PER_ITERATION = 20
"""Connections that are closed in one turn: 3,000 clients that left together took three turns of 0.1 s."""
POLLS_PER_ITERATION = 16
"""At what has come, as long as most of it are clients that left: 1,000 of them in 2 ms."""

log = get_logger(__name__)


class HttpServer:
    """Serves one application on any number of listening sockets. For one ``serve`` only."""

    def __init__(
        self,
        limits: HttpLimits | None = None,
        *,
        tls: Tls | None = None,
        refusal_headers: Sequence[tuple[bytes, bytes]] = (),
        asking_proves: bool = True,
    ) -> None:
        """``asking_proves``: whoever sends a whole request is known; else the application says who is."""
        self.limits = limits or HttpLimits()
        self._tls = tls
        self._per_address = PerAddress(self.limits.max_connections_per_address)
        self.refusal_headers = refusal_headers
        """Of every answer that the server gives itself."""
        self.body_budget = BodyBudget(self.limits.max_request_memory_bytes)
        self.date = DateHeader()
        self.heads = Heads(self.date)
        self.requests_total = 0
        self.refused_total = 0
        self.failed_total = 0
        self.timed_out_total = 0
        self._accepted_total = 0
        self._connections: set[HttpConnection] = set()
        self._closing = trio.CapacityLimiter(CLOSED_PER_ITERATION)
        self._door = Door(
            self.limits.max_connections,
            unproved_per_host=self.limits.max_unproved_per_address,
            is_whole=is_whole_request if tls is None else bool,
            first_request_s=self.limits.header_timeout_seconds,
            asking_proves=asking_proves,
            end_idle=self._end_idle,
            idle_s=self.limits.evict_after_idle_seconds,
            closing=self._closing,
            refusal=self._refuse_at_door if tls is None else None,
        )
        self._poller: Poller | None = None  # while it serves
        self._calls = TasklessQueue(self._poll)
        self._drain = trio.Event()
        self.draining = False
        self._waited: list[
            tuple[float, InlineConnection]
        ] = []  # calls whose time is over before the next look at deadlines

    # -- the Server interface

    async def serve(
        self,
        app: App,
        sockets: list[socket.socket],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until drained: returns when the last connection has ended. Takes the listening sockets over and closes
        them. Cancelling it ends all connections at once, answered or not."""
        async with trio.open_nursery() as background:
            background.start_soon(self._enforce_deadlines, background)
            background.start_soon(self._calls.run)
            background.start_soon(self._door.run)
            if HAVE_EPOLL:
                self._poller = Poller(POLLS_PER_ITERATION if self._tls is None else 1)
                background.start_soon(self._poller.run)
            async with trio.open_nursery() as connections, trio.open_nursery() as accepting:

                def start(sock: socket.socket, guest: Guest) -> None:
                    connections.start_soon(self._handle_socket, app, sock, guest)

                for sock in sockets:
                    accepting.start_soon(self._door.accept, sock, start)
                task_status.started()
                await self._drain.wait()
                # Requests that were on their way when the drain began: accepted, read and answered for a moment more.
                await trio.sleep(self.limits.drain_quiet_seconds)
                accepting.cancel_scope.cancel()
                self._door.close()
                for connection in self._connections:
                    connection.close_if_idle()
            background.cancel_scope.cancel()

    def drain(self) -> None:
        """Stop accepting, close idle connections, answer what runs with ``connection: close``. Idempotent."""
        self.draining = True
        self._drain.set()

    def statistics(self) -> HttpStatistics:
        phases = [connection.phase for connection in self._connections]
        return HttpStatistics(
            connections=len(phases) + self._door.held,
            idle_connections=phases.count(Phase.IDLE),
            running_requests=phases.count(Phase.ANSWERING) + phases.count(Phase.WRITING),
            accepted_total=self._accepted_total,
            requests_total=self.requests_total,
            refused_total=self.refused_total,
            failed_total=self.failed_total,
            timed_out_total=self.timed_out_total,
            request_memory_bytes=self.body_budget.used_bytes,
        )

    # -- connections

    def make_inline_connection(self, connection: HttpConnection, sock: socket.socket) -> InlineConnection | None:
        """What serves a connection without its task, where that can be: not when the server has just ended."""
        if self._poller is None or self._poller.closed:
            return None
        return InlineConnection(connection, sock, self._poller, self._calls)

    def _poll(self) -> None:
        """Who has closed its side meanwhile gets no job."""
        if self._poller is not None:
            self._poller.read_events()

    async def wait_to_close(self) -> None:
        """For a connection that has ended: of many at once each waits until it may be closed."""
        async with self._closing:
            await trio.lowlevel.checkpoint()

    async def handle(
        self,
        app: App,
        stream: trio.abc.HalfCloseableStream,
        client: tuple[str, int] | None = None,
        server_address: tuple[str, int] | None = None,
        certificate: tuple[str, ...] | None = None,
        sock: socket.socket | None = None,
        guest: Guest | None = None,
    ) -> None:
        """Serve one client on any stream, and close it. ``certificate``: over TLS, whom the client's names; ``sock``:
        of a plain stream; ``guest``: of one that came through the door."""
        connection = HttpConnection(self, app, stream, client, server_address, certificate, sock, guest)
        self._connections.add(connection)
        self._accepted_total += 1
        try:
            await connection.run()
        except Exception:
            log.exception("a connection ended by a bug in the server", client=client)
        finally:
            self._connections.discard(connection)

    def _refuse_at_door(self, begun: bytes, whole: bool) -> bytes:
        self.refused_total += 1
        self.timed_out_total += not whole
        refusal = no_turn() if whole else too_slow("body" if b"\r\n\r\n" in begun else "headers")
        return encode_refusal(refusal, self.refusal_headers, self.date.line())

    async def _handle_socket(self, app: App, sock: socket.socket, guest: Guest) -> None:
        try:
            with sock:
                client, server_address = _address(sock.getpeername()), _address(sock.getsockname())
                with self._per_address.counted(client[0]) as room:
                    if not room:
                        return
                    if self._tls is None:
                        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
                        await self.handle(app, stream, client, server_address, sock=sock, guest=guest)
                    else:
                        plain = open_stream(sock, self._poller)
                        await self._handle_tls(app, plain, self._tls, client, server_address, guest)
        except OSError:
            log.debug("a client closed its connection while it was accepted")
        finally:
            guest.leave()

    async def _handle_tls(
        self,
        app: App,
        stream: PlainStream,
        tls: Tls,
        client: tuple[str, int],
        server_address: tuple[str, int],
        guest: Guest,
    ) -> None:
        secured = await accept_tls(stream, tls, self.limits.header_timeout_seconds, guest)
        if secured is not None:
            await self.handle(app, TlsStream(secured), client, server_address, names_of(secured), guest=guest)

    async def _end_idle(self) -> None:
        """The longest idle connection makes room."""
        idle_before = trio.current_time() - self.limits.evict_after_idle_seconds
        idle = [c for c in self._connections if c.idle_since <= idle_before]
        if idle:
            min(idle, key=lambda connection: connection.idle_since).close_if_idle()

    def expire_soon(self, direct: InlineConnection) -> None:
        """The time of a call is over soon, that waits without a task."""
        self._waited.append((direct.expires_at, direct))

    async def _enforce_deadlines(self, nursery: trio.Nursery) -> None:
        while True:
            await trio.sleep(self.limits.deadline_tick_seconds)
            await self._expire_late()
            if self._waited:
                nursery.start_soon(_expire_calls, sorted(self._waited, key=itemgetter(0)))
                self._waited = []

    async def _expire_late(self) -> None:
        now = trio.current_time()
        late = [c for c in self._connections if c.expires_at <= now]
        ended = 0
        for connection in late:
            if connection.expires_at > now:
                continue
            waits = connection.phase is Phase.ANSWERING  # its call is only noted
            await connection.expire()
            ended += not waits
            if ended == EXPIRED_PER_ITERATION:  # each has a refusal to write then: others have their turn between
                ended = 0
                await trio.lowlevel.checkpoint()


async def _expire_calls(calls: Sequence[tuple[float, InlineConnection]]) -> None:
    for count, (deadline, direct) in enumerate(calls, 1):
        # one that is late costs no turn of the loop of its own: of a crowd the last would wait for all of them
        if deadline > trio.current_time() or count % EXPIRED_PER_ITERATION == 0:
            await trio.sleep_until(deadline)
        direct.expire(deadline)


def _address(name: tuple[str, int]) -> tuple[str, int]:
    return name[0], name[1]  # IPv6 names have two members more
