"""Clients at the door: how many are let in, in one turn of the loop."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import trio
import trio.testing

from penstock.net.accept import ACCEPTED_PER_ITERATION, accept_connections


class Door(trio.abc.Instrument):
    """Accepts from a real socket, and counts by turn of the loop."""

    def __init__(self, listener: socket.socket, stack: ExitStack) -> None:
        self.address = listener.getsockname()
        self.by_turn: list[int] = []
        self.rooms_asked = 0
        self._accepted = 0
        self._stack = stack

    async def wait_for_place(self) -> None:
        self.rooms_asked += 1

    def start(self, connected: socket.socket, address: str) -> None:
        assert address == "127.0.0.1"
        self._accepted += 1
        self._stack.callback(connected.close)

    def before_io_wait(self, timeout: float) -> None:
        if self._accepted:
            self.by_turn.append(self._accepted)
        self._accepted = 0

    async def wait_accepted(self, count: int) -> None:
        with trio.fail_after(30):
            while sum(self.by_turn) < count:
                await trio.lowlevel.checkpoint()


async def test_accepting_speeds_up_for_crowds_and_not_single_clients() -> None:
    with ExitStack() as stack:
        listener = socket.create_server(("127.0.0.1", 0), backlog=300)
        door = Door(listener, stack)

        def come(count: int) -> None:
            for _ in range(count):
                stack.enter_context(socket.create_connection(door.address))

        async with trio.open_nursery() as nursery:
            come(200)
            trio.lowlevel.add_instrument(door)
            nursery.start_soon(accept_connections, listener, door.wait_for_place, door.start)
            await door.wait_accepted(200)
            assert door.by_turn[:7] == [1, 2, 4, 8, 16, 32, 64]  # processes that share the socket each take their part
            assert max(door.by_turn) == ACCEPTED_PER_ITERATION
            assert len(door.by_turn) <= 6 + 200 / ACCEPTED_PER_ITERATION + 1
            await trio.testing.wait_all_tasks_blocked()
            come(1)
            await door.wait_accepted(201)
            await trio.testing.wait_all_tasks_blocked()
            trio.lowlevel.remove_instrument(door)
            nursery.cancel_scope.cancel()
    assert door.rooms_asked == 201  # room is made, by ending idle connections, only for who is there
