"""Statements are waited for so long, by one task for all of them."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing
from psycopg.waiting import Wait

from penstock.store.db.statement_watchdog import AGAIN_S, StatementWatchdog, statement_watchdog
from penstock.store.db.wait import wait_ready


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_each_is_woken_when_its_time_is_over(autojump_clock: trio.testing.MockClock) -> None:
    found, woken = StatementWatchdog(), dict[str, float]()
    start = trio.current_time()

    def note(name: str) -> None:
        woken.setdefault(name, trio.current_time() - start)

    long = found.begin(30, lambda: note("long"))
    answered = found.begin(20, lambda: note("answered"))
    await trio.sleep(1)
    short = found.begin(2, lambda: note("short"))  # sooner than the one that the task sleeps for
    await trio.sleep(5)
    assert (short.is_over, answered.is_over, long.is_over) == (True, False, False)
    found.end(short)
    found.end(answered)
    await trio.sleep(40)
    found.end(long)
    assert woken == {"short": pytest.approx(3), "long": pytest.approx(30)}


async def test_who_goes_on_waiting_is_woken_again(autojump_clock: trio.testing.MockClock) -> None:
    found, times = StatementWatchdog(), list[float]()
    wait = found.begin(1, lambda: times.append(trio.current_time()))
    await trio.sleep(1 + 2.5 * AGAIN_S)
    found.end(wait)
    assert len(times) == 3


async def test_nothing_runs_while_nobody_waits(autojump_clock: trio.testing.MockClock) -> None:
    found = statement_watchdog()
    assert found is statement_watchdog()
    before = tasks()
    for _ in range(2):
        wait = found.begin(10, lambda: None)
        await trio.testing.wait_all_tasks_blocked()
        assert tasks() == before + 1
        found.end(wait)
        await trio.sleep(11)
        assert tasks() == before


@pytest.mark.parametrize("kind", [Wait.R, Wait.RW])
async def test_a_closed_socket_ends_each_kind_of_wait(kind: Wait) -> None:
    ours, theirs = socket.socketpair()
    raised: list[BaseException] = []

    async def wait() -> None:
        try:
            await wait_ready(ours.fileno(), kind)
        except trio.ClosedResourceError as error:
            raised.append(error)

    with ours, theirs, trio.fail_after(30):
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:  # until nothing more can be written
                ours.send(bytes(65_536))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            trio.lowlevel.notify_closing(ours)
    assert len(raised) == 1
