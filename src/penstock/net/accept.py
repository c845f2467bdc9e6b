"""The door of all servers: from a listening socket to connected ones, as many as there is room for.

Who has proved nothing yet makes room for who comes: those who never asked for anything first, of the host that has the
most of them. And in a crowd who has asked is served in turns, by hosts: one of whom nobody is served comes first. So
neither silent connections nor half-sent requests nor greetings keep a caller out, from one address or from many.
"""

from __future__ import annotations

import errno
import select
import socket
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import partial
from itertools import chain

import trio

from penstock.log.log import RateLimitedLog, get_logger
from penstock.loop.poller import HAVE_EPOLL, Poller
from penstock.net.addresses import host_of

rate_limited = RateLimitedLog(get_logger("penstock.accept"))

# The process or the machine has run out of something; the listening socket itself is well (accept(2)).
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_RETRY_SECONDS = 0.1
# Errors of the connection that was about to be accepted, not of the listener (accept(2), "Error handling").
_CLIENT_GONE = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPERM,
        errno.EPROTO,
        errno.ENETDOWN,
        errno.ENOPROTOOPT,
        errno.EHOSTDOWN,
        errno.ENONET,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
        errno.ENETUNREACH,
    }
)


ACCEPTED_PER_ITERATION = 64
"""Of a crowd at the door, in one turn of the loop (2 ms): one a turn, and the last waits for as many turns. A crowd
that comes faster than it is let in fills the kernel's queue, which then drops whoever comes."""


CROWD_CONNECTIONS = 64
"""Connections that were served and have not asked for anything: above it others wait at the door for their first bytes,
which costs a tenth of what serving them does."""
OTHERS_EVERY = 4
"""Of so many turns one goes to a host of whom somebody is served, though others wait: ever new hosts shut none out."""
HELD_POLL_S = 0.5
HELD_BEGUN_S = 1.0
"""Who has sent a part of a request so long ago is served in its turn: its body may be on its way for longer."""
BEGUN_PER_ITERATION = 16
"""Of those at the door who may be served, in one turn of the loop: one that asks for nothing then costs 1 ms. Fewer,
down to one, as long as connections have to make room."""
PEEK_BYTES = 16 * 1024
CHECKED_PER_ITERATION = 64
TRIED_TO_END = 16
"""Connections that are asked whether they can be ended, for one that comes."""
GRACE_S = 0.3
"""Who came less than this ago is not ended: what it asks for may be on its way."""
PLACE_CHECK_S = 1.0
"""How often a full server looks for an idle connection to end."""


Start = Callable[[socket.socket, "Guest"], None]


class Stage(IntEnum):
    """How far a connection is that has proved nothing; the first are ended first."""

    HELD = 0
    """At the door: nothing has come yet that could be served, or only a part."""
    READY = 1
    """At the door until its turn."""
    BEGUN = 2
    """It never asked for anything."""
    ANSWERED = 3
    """It asked for something, and did not prove who it is."""


class Guest:
    """One connection, as the door knows it."""

    __slots__ = ("_door", "end", "host", "proved", "since", "sock", "stage", "start")

    def __init__(self, door: Door, host: str, sock: socket.socket, start: Start, stage: Stage) -> None:
        self._door = door
        self.host, self.sock, self.start = host, sock, start
        self.since = trio.current_time()
        self.stage = stage
        self.proved = False
        self.end: Callable[[], bool] = _not_now
        """Begins to end it, for another's sake; false when what it has sent is being dealt with."""

    def ask(self) -> None:
        """A whole request has come: a proof where no other is asked for."""
        if not self.proved:
            self._door.on_asked(self)

    def prove(self) -> None:
        """It is known who calls: the connection stays."""
        if not self.proved:
            self.proved = True
            self._door.on_proved(self)

    @property
    def at_door(self) -> bool:
        """Nobody serves it yet."""
        return self.stage <= Stage.READY

    def leave(self) -> None:
        """It was closed."""
        self.end = _not_now  # each knows the other: thousands that end would wait for one long collection
        self._door.leave(self)


def _not_now() -> bool:
    return False


class _Book:
    """The connections of one stage; finds in constant time which host has most, and who of it came first."""

    def __init__(self) -> None:
        self._of_host: dict[str, OrderedDict[Guest, None]] = {}
        self._hosts: dict[int, OrderedDict[str, None]] = {}  # by how many connections they have
        self._most = 0
        self.count = 0

    def of_host(self, host: str) -> int:
        return len(self._of_host.get(host, ()))

    def __iter__(self) -> Iterator[Guest]:
        return chain.from_iterable(self._of_host.values())

    def add(self, guest: Guest) -> None:
        guests = self._of_host.setdefault(guest.host, OrderedDict())
        guests[guest] = None
        self._move(guest.host, len(guests) - 1, len(guests))
        self.count += 1

    def remove(self, guest: Guest) -> bool:
        """False when it is not here."""
        guests = self._of_host.get(guest.host)
        if guests is None or guest not in guests:
            return False
        del guests[guest]
        self._move(guest.host, len(guests) + 1, len(guests))
        self.count -= 1
        if not guests:
            del self._of_host[guest.host]
        return True

    def oldest(self, host: str | None) -> Guest | None:
        """Of a host, or of the one that has most."""
        if host is None:
            host = next(iter(self._hosts[self._most]), None) if self._most else None
        guests = None if host is None else self._of_host.get(host)
        return next(iter(guests)) if guests else None

    def put_last(self, guest: Guest) -> None:
        self._of_host[guest.host].move_to_end(guest)
        self._hosts[len(self._of_host[guest.host])].move_to_end(guest.host)

    def _move(self, host: str, before: int, now: int) -> None:
        if before:
            hosts = self._hosts[before]
            del hosts[host]
            if not hosts:
                del self._hosts[before]
        if now:
            self._hosts.setdefault(now, OrderedDict())[host] = None
        if now > self._most or (before == self._most and before not in self._hosts):
            self._most = now  # one more or one less: it is the most that any has


class _Unproved:
    """Who has proved nothing, by stage and by host."""

    def __init__(self) -> None:
        self.books = tuple(_Book() for _ in Stage)
        self._of_host = Counter[str]()
        self.count = 0

    def of_host(self, host: str) -> int:
        return self._of_host[host]

    @property
    def at_door(self) -> list[Guest]:
        return [*self.books[Stage.READY], *self.books[Stage.HELD]]

    @property
    def held(self) -> int:
        return self.books[Stage.READY].count + self.books[Stage.HELD].count

    @property
    def begun(self) -> int:
        return self.books[Stage.BEGUN].count

    def serves(self, host: str) -> bool:
        return bool(self.books[Stage.BEGUN].of_host(host) or self.books[Stage.ANSWERED].of_host(host))

    def add(self, guest: Guest) -> None:
        self.count += 1
        self._of_host[guest.host] += 1
        self.books[guest.stage].add(guest)

    def move(self, guest: Guest, stage: Stage) -> None:
        self.books[guest.stage].remove(guest)
        guest.stage = stage
        self.books[stage].add(guest)

    def remove(self, guest: Guest) -> None:
        """Idempotent."""
        if self.books[guest.stage].remove(guest):
            self.count -= 1
            self._of_host[guest.host] -= 1
            if not self._of_host[guest.host]:
                del self._of_host[guest.host]


class _Turns:
    """Whose guest is served next of those who are READY: by hosts."""

    def __init__(self, unproved: _Unproved) -> None:
        self._unproved = unproved
        self._fresh = OrderedDict[str, None]()  # hosts of whom nobody is served
        self._others = OrderedDict[str, None]()  # the next one first
        self._taken = 0

    def add(self, host: str) -> None:
        if host not in self._fresh and host not in self._others:
            (self._others if self._unproved.serves(host) else self._fresh)[host] = None

    def take(self) -> Guest | None:
        ready = self._unproved.books[Stage.READY]
        self._taken += 1
        waiting = (self._fresh, self._others)
        for hosts in waiting if self._taken % OTHERS_EVERY else reversed(waiting):
            while hosts:
                host, _ = hosts.popitem(last=False)
                guest = ready.oldest(host)
                if guest is not None:
                    if ready.of_host(host) > 1:
                        self._others[host] = None
                    return guest
        return None


class Door:
    """Of one server: lets connections in, and knows who of them has proved nothing yet."""

    def __init__(
        self,
        most: int,
        *,
        unproved_per_host: int,
        is_whole: Callable[[bytes], bool],
        first_request_s: float,
        asking_proves: bool = True,
        end_idle: Callable[[], Awaitable[None]],
        idle_s: float,
        closing: trio.CapacityLimiter | None = None,
        refusal: Callable[[bytes, bool], bytes] | None = None,
    ) -> None:
        """At most ``most`` connections, half of which only those can have who are known. ``is_whole``: whether these
        first bytes are worth to be looked at; ``asking_proves``: nobody has to say who they are; ``end_idle``: end a
        connection of those who are known, which was idle for ``idle_s``; ``closing``: has as many places as connections
        may be closed in one turn of the loop; ``refusal``: what a client is told that is not served, by what it has
        sent and whether that is worth to be looked at."""
        self._refusal = refusal
        self._closing = closing or trio.CapacityLimiter(1)
        self._most = most
        self._most_unproved = max(most - most // 2, 1)
        self._unproved_per_host = unproved_per_host
        self._is_whole = is_whole
        self._first_request_s = first_request_s
        self._asking_proves = asking_proves
        self._end_idle = end_idle
        self._check_s, self._grace_s = min(idle_s, PLACE_CHECK_S), min(idle_s, GRACE_S)
        self._unproved = _Unproved()
        self._turns = _Turns(self._unproved)
        self._poller: Poller | None = None
        self._listeners: dict[Guest, Callable[[bool], None]] = {}  # of those who are HELD
        self._any_ready = trio.Event()
        self._pace = BEGUN_PER_ITERATION
        self._closed = False
        self._gone = deque[Guest]()  # clients that left before anybody served them
        self._any_gone = trio.Event()
        self._connection_ended = trio.Event()  # set when a connection ends; replaced by who waits for it
        self.open = 0
        """Connections that were accepted and not closed."""
        self.ended_total = 0
        """Connections that had proved nothing and made room for others."""

    @property
    def held(self) -> int:
        """Connections that nobody serves yet."""
        return self._unproved.held + len(self._gone)

    async def run(self) -> None:
        """Look after those at the door, until cancelled; in the end they are closed."""
        if not HAVE_EPOLL:
            await trio.sleep_forever()
        self._poller = Poller()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._poller.run)
                nursery.start_soon(self._close_gone)
                nursery.start_soon(self._begin_ready)
                while True:
                    await trio.sleep(HELD_POLL_S)
                    await self._watch_held()
        finally:
            self.close()
            for guest in self._gone:
                self._turn_away(guest)
            self._poller = None

    def close(self) -> None:
        """Serve nobody more: those at the door are turned away. Before what they would be served in has ended."""
        self._closed = True
        for guest in self._unproved.at_door:
            self._turn_away(guest)

    async def accept(self, listener: socket.socket, start: Start) -> None:
        """Accept until cancelled, then close the listener. ``start`` takes the socket over, and calls `Guest.leave`."""
        await accept_connections(listener, self._wait_for_place, partial(self.let_in, start), self._is_full)

    # -- for guests

    def on_asked(self, guest: Guest) -> None:
        """See `Guest.ask`."""
        if self._asking_proves:
            guest.prove()
        elif guest.stage is Stage.BEGUN:
            self._unproved.move(guest, Stage.ANSWERED)

    def on_proved(self, guest: Guest) -> None:
        """See `Guest.prove`."""
        self._pace = min(self._pace + 1, BEGUN_PER_ITERATION)
        self.forget(guest)

    def forget(self, guest: Guest) -> None:
        """It is none of those any more who can be ended."""
        self._unproved.remove(guest)

    def leave(self, guest: Guest) -> None:
        """See `Guest.leave`."""
        self.forget(guest)
        self.open -= 1
        self._connection_ended.set()

    # -- the door itself

    def let_in(self, start: Start, sock: socket.socket, address: str) -> Guest | None:
        """One that was accepted; None when it has left already."""
        host = host_of(address)
        stage = Stage.BEGUN
        if self._poller is not None and self._is_crowded:
            sock.setblocking(False)
            begun = self._peek(sock)
            if begun is None:
                sock.close()
                return None
            stage = Stage.READY if self._is_worth(begun) else Stage.HELD
        if self._unproved.of_host(host) >= self._unproved_per_host:
            self._end_one(host)
        elif self._unproved.count >= self._most_unproved:
            self._end_one(None)
        guest = Guest(self, host, sock, start, stage)
        self.open += 1
        self._unproved.add(guest)
        if stage is Stage.BEGUN:
            start(sock, guest)
        elif stage is Stage.READY:
            self._on_ready(host)
        elif self._poller is not None:
            self._listeners[guest] = listener = partial(self._on_readable, guest)
            self._poller.add(sock.fileno(), listener)
        return guest

    @property
    def _is_crowded(self) -> bool:
        return self._unproved.begun >= CROWD_CONNECTIONS

    def _is_full(self) -> bool:
        return self.open >= self._most

    async def _wait_for_place(self) -> None:
        """Until the client that waits may be accepted."""
        while self.open >= self._most:
            if self._connection_ended.is_set():
                self._connection_ended = trio.Event()
            if self._gone:
                self._turn_away(self._gone.popleft())
            elif not self._end_one(None):
                await self._end_idle()
            with trio.move_on_after(self._grace_s / 4 if self._unproved.count else self._check_s):
                await self._connection_ended.wait()

    def _end_one(self, host: str | None) -> bool:
        """Begin to end a connection that proved nothing (of a host, or of any), if there is one that can be."""
        came_before = trio.current_time() - self._grace_s
        for book in self._unproved.books:
            for _ in range(TRIED_TO_END):
                guest = book.oldest(host)
                if guest is None or guest.since > came_before:
                    break
                if guest.stage is Stage.HELD and self._check(guest):
                    continue
                if guest.at_door:
                    self._turn_away(guest, answered=False)
                elif guest.end():
                    self.forget(guest)
                else:
                    book.put_last(guest)
                    continue
                self._pace = max(self._pace // 2, 1)
                self.ended_total += 1
                rate_limited.warning(
                    "ended", "connections that asked for nothing were ended to make room for others",
                    ended_total=self.ended_total, last_from=guest.host,
                )  # fmt: skip
                return True
        return False

    def _begin(self, guest: Guest) -> None:
        if self._closed:
            self._turn_away(guest)
            return
        self._unproved.move(guest, Stage.BEGUN)
        guest.start(guest.sock, guest)

    def _check(self, guest: Guest) -> bool:
        """Return whether one who is HELD is it no more: there is something to look at, or it has left."""
        begun = self._peek(guest.sock)
        if begun is None:
            self._on_gone(guest)
        elif self._is_worth(begun):
            self._offer(guest)
        else:
            return False
        return True

    def _is_worth(self, begun: bytes) -> bool:
        return self._is_whole(begun) or len(begun) == PEEK_BYTES

    def _offer(self, guest: Guest) -> None:
        """Serve one who was HELD, in a crowd when it is its turn."""
        self._stop_listening(guest)
        if self._is_crowded:
            self._unproved.move(guest, Stage.READY)
            self._on_ready(guest.host)
        else:
            self._begin(guest)

    def _on_ready(self, host: str) -> None:
        self._turns.add(host)
        self._any_ready.set()

    async def _begin_ready(self) -> None:
        while True:
            await self._any_ready.wait()
            for _ in range(self._pace):
                guest = self._turns.take()
                if guest is None:
                    self._any_ready = trio.Event()
                    break
                self._begin(guest)
            await trio.lowlevel.checkpoint()

    @staticmethod
    def _peek(sock: socket.socket) -> bytes | None:
        """What has come; None when nothing more will."""
        try:
            return sock.recv(PEEK_BYTES, socket.MSG_PEEK) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def _on_readable(self, guest: Guest, hung_up: bool) -> None:
        if guest not in self._listeners:
            return
        if hung_up and self._peek(guest.sock):  # it waits for an answer all the same
            self._offer(guest)
        else:
            self._check(guest)

    def _on_gone(self, guest: Guest) -> None:
        self._stop_listening(guest)
        self.forget(guest)
        self._gone.append(guest)
        self._any_gone.set()

    def _turn_away(self, guest: Guest, *, answered: bool = True) -> None:
        """``told``: what became of its request. Not in a flood: that costs a third of what letting one in costs."""
        self._stop_listening(guest)
        if answered and self._refusal is not None:
            with suppress(OSError):  # it has left, or sent nothing
                begun = guest.sock.recv(PEEK_BYTES)  # else closing would reset the connection under the answer
                if begun:
                    guest.sock.send(self._refusal(begun, guest.stage is Stage.READY))
        guest.sock.close()
        self.leave(guest)

    def _stop_listening(self, guest: Guest) -> None:
        listener = self._listeners.pop(guest, None)
        if listener is not None and self._poller is not None:
            self._poller.remove(guest.sock.fileno(), listener)

    async def _close_gone(self) -> None:
        while True:
            await self._any_gone.wait()
            while self._gone:
                async with self._closing:
                    if self._gone:
                        self._turn_away(self._gone.popleft())
                    await trio.lowlevel.checkpoint()
            self._any_gone = trio.Event()

    async def _watch_held(self) -> None:
        begun_s = min(HELD_BEGUN_S, self._first_request_s / 2)
        for number, guest in enumerate(self._unproved.at_door, 1):
            age_s = trio.current_time() - guest.since
            has_left = guest.stage is Stage.HELD and guest not in self._listeners  # since the snapshot was made
            if has_left or not guest.at_door or age_s < begun_s or guest.sock.fileno() < 0:
                pass
            elif age_s >= self._first_request_s:
                self._turn_away(guest)
            elif guest in self._listeners and self._peek(guest.sock):
                self._offer(guest)
            if number % CHECKED_PER_ITERATION == 0:
                await trio.lowlevel.checkpoint()


class PerAddress:
    """Open connections of each host (`host_of` its address), at most ``most`` (0: any)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    @contextmanager
    def counted(self, address: str) -> Generator[bool]:
        """Count a connection for the block; false when there is no room for it."""
        host = host_of(address)
        if not self._most:
            yield True
        elif self._open[host] >= self._most:
            yield False
        else:
            self._open[host] += 1
            try:
                yield True
            finally:
                self._open[host] -= 1
                if not self._open[host]:
                    del self._open[host]


async def accept_connections(
    listener: socket.socket,
    wait_for_place: Callable[[], Awaitable[None]],
    start: Callable[[socket.socket, str], object],
    is_full: Callable[[], bool] = lambda: True,
) -> None:
    """Accept until cancelled, then close the listener. ``start`` takes each connected socket over, with its client's
    address, and does not block; ``wait_for_place`` is awaited when a client waits, before it is accepted, as long as it
    ``is_full``. One is accepted in a turn of the loop, so that processes which share the socket share its clients; as
    long as more wait, twice as many in each next turn."""
    with listener:
        listener.setblocking(False)
        door = select.poll()
        door.register(listener, select.POLLIN)
        count = 1
        while True:
            await trio.lowlevel.wait_readable(listener)
            left = count
            while left:
                if is_full():
                    if left < count and not door.poll(0):
                        break
                    await wait_for_place()
                left -= 1
                try:
                    connected, (address, *_) = listener.accept()
                except BlockingIOError:
                    break  # another process that shares the socket was faster, or the client gave up
                except OSError as exc:
                    if exc.errno in _EXHAUSTED:
                        rate_limited.warning("exhausted", "can't accept connections", reason=str(exc))
                        await trio.sleep(_RETRY_SECONDS)
                    elif exc.errno not in _CLIENT_GONE:
                        raise
                else:
                    start(connected, address)
            count = 1 if left else min(2 * count, ACCEPTED_PER_ITERATION)
