"""The accept loop of all servers: from a listening socket to connected ones, as many as there is room for."""

from __future__ import annotations

import errno
import select
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import trio

from penstock.addresses import host_of
from penstock.log import RateLimitedLog, get_logger

rate_limited = RateLimitedLog(get_logger(__name__))

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


ACCEPTED_PER_TURN = 16
"""Of a crowd at the door, in one turn of the loop (0.5 ms): one a turn, and the last waits for as many turns."""


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
    wait_for_room: Callable[[], Awaitable[None]],
    start: Callable[[socket.socket], None],
) -> None:
    """Accept until cancelled, then close the listener. ``start`` takes each connected socket over and does not block;
    ``wait_for_room`` is awaited when a client waits, before it is accepted. One is accepted in a turn of the loop, so
    that processes which share the socket share its clients; as long as more wait, twice as many in each next turn."""
    with listener:
        listener.setblocking(False)
        door = select.poll()
        door.register(listener, select.POLLIN)
        count = 1
        while True:
            await trio.lowlevel.wait_readable(listener)
            left = count
            while left and (left == count or door.poll(0)):
                left -= 1
                await wait_for_room()
                try:
                    connected, _ = listener.accept()
                except BlockingIOError:
                    break  # another process that shares the socket was faster, or the client gave up
                except OSError as exc:
                    if exc.errno in _EXHAUSTED:
                        rate_limited.warning("exhausted", "can't accept connections", reason=str(exc))
                        await trio.sleep(_RETRY_SECONDS)
                    elif exc.errno not in _CLIENT_GONE:
                        raise
                else:
                    start(connected)
            count = 1 if left else min(2 * count, ACCEPTED_PER_TURN)
