"""One epoll and one task for all plain connections: says when a socket has something to read, or was closed.

Trio registers a socket anew for each wait, and wakes a task for each. Here a socket is registered once, edge-triggered:
what is told once and not read stays the listener's to remember. Linux only; elsewhere connections wait for themselves.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Final

import trio

HAVE_EPOLL: Final = hasattr(select, "epoll")
EVENTS_PER_LOOK: Final = 64
"""Sockets that are read in one turn of the loop."""
LOOKS_PER_TURN: Final = 16
"""As long as most of what a look finds are clients that left: 1,000 of them in 2 ms. Who asks stands behind them."""

Listener = Callable[[bool], None]
"""Something came, or (True) the client has closed its side at least: thousands may hear that in one turn, so what it
leads to has to wait."""


class Poller:
    """For one `run` only."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._listeners: dict[int, Listener] = {}

    @property
    def closed(self) -> bool:
        """Whether `run` has ended: nobody is told any more."""
        return self._epoll.closed

    def add(self, fd: int, listener: Listener) -> None:
        """Tell ``listener`` from now on, and of what is there already."""
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        self._listeners[fd] = listener

    def remove(self, fd: int, listener: Listener) -> None:
        """Before the socket is closed: its number may be another's soon. Idempotent."""
        if self._listeners.get(fd) == listener:
            del self._listeners[fd]
            if not self._epoll.closed:
                self._epoll.unregister(fd)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self.look()
        finally:
            self._epoll.close()

    def look(self) -> None:
        """Tell what is known now. Does not wait."""
        if self._epoll.closed:
            return
        left = EVENTS_PER_LOOK
        for _ in range(LOOKS_PER_TURN):
            found = self._epoll.poll(0, EVENTS_PER_LOOK)
            for fd, events in found:
                hung_up = events & ~select.EPOLLIN != 0
                left -= not hung_up
                listener = self._listeners.get(fd)
                if listener is not None:
                    listener(hung_up)
            if len(found) < EVENTS_PER_LOOK or left <= EVENTS_PER_LOOK // 2:
                return
