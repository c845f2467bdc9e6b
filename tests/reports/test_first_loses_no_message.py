"""A losing alternative of `first` leaves its message, its item and its permit for who comes next."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from math import inf

import pytest

from penstock.durable import (
    App,
    Semaphore,
    each,
    first,
    move_on_after,
    open_memory_channel,
    open_nursery,
    receive,
    sleep,
    workflow,
)
from penstock.durable.activation import Activation, Still
from penstock.kernel.record import JournalKind, Record
from penstock.testing import Message, explore, run_workflow
from penstock.testing.invariants import assert_invariants
from tests.house.sources import TOP
from tests.reports.accounts import account

MANY = 50
KILLS = 15
BOUND_S = 120.0


@workflow
async def pairs() -> dict[str, int]:
    await sleep("1 s")
    got = {"a": 0, "b": 0}
    with move_on_after("1 min"):
        while sum(got.values()) < 2 * MANY:
            won = await first(a=receive("a", int), b=receive("b", int))
            got[won.name] += 1
    return got


def test_messages_that_are_both_there_are_both_received() -> None:
    messages = [Message(name, n) for n in range(MANY) for name in ("a", "b")]
    assert run_workflow(pairs, messages=messages).result() == {"a": MANY, "b": MANY}


@workflow
async def late() -> list[str]:
    won = await first(m=receive("approval", str), t=sleep("2 s"))
    with move_on_after("1 s"):
        return [won.name, await receive("approval", str)]
    return [won.name]


def test_a_message_that_came_after_the_time_is_kept() -> None:
    """Nobody had the run when its time was over: the record that tells of it is the message's."""
    run = Activation(late, "r", "{}", 100.0, Still())
    run.replay([Record(103.0, JournalKind.MESSAGE, name="approval", payload='"yes"', pos=1)])
    assert run.result is not None
    assert run.result.value == ["t", "yes"]


@workflow
async def ticking() -> int:
    count = 0
    with move_on_after("1 h"):
        while count < MANY:
            won = await first(m=receive("m", int), t=sleep("20 ms"))
            count += won.name == "m"
    return count


def test_a_loop_that_ticks_misses_none() -> None:
    messages = [Message("m", n, after=0.02 * n) for n in range(MANY)]
    assert run_workflow(ticking, messages=messages).result() == MANY


@workflow
async def others() -> list[int]:
    """A sibling that fails, a deadline, a nursery and `each`, in the moment in which the message is there."""
    got: list[int] = []
    await sleep("1 s")

    async def fails() -> None:
        raise ValueError

    async def takes(name: str) -> None:
        got.append(await receive(name, int))

    try:
        async with open_nursery() as nursery:
            nursery.start_soon(fails)
            nursery.start_soon(takes, "n")
    except* ValueError:
        got.append(-1)
    with move_on_after(0):
        got.append(await receive("n", int))
    got.append(await receive("n", int))

    async def one(number: int) -> int:
        if number == 0:
            raise ValueError
        return await receive("e", int)

    try:
        await each(one, [0, 1, 2])
    except* ValueError:
        got.append(-2)
    got += [await receive("e", int), await receive("e", int)]
    return got


def test_no_scope_that_is_cancelled_takes_a_message() -> None:
    messages = [Message("n", 7), Message("e", 8), Message("e", 9)]
    assert run_workflow(others, messages=messages).result() == [-1, 7, -2, 8, 9]


@workflow
async def items_and_permits() -> list[str | int]:
    send, take = open_memory_channel(inf)
    permits = Semaphore(1)
    for number in range(4):
        send.send_nowait(number)
    seen: list[str | int] = []
    for _ in range(2):
        won = await first(a=take.receive(), b=take.receive())
        seen.append(won.value)
    lost = await first(t=sleep(0), p=permits.acquire())
    seen += [lost.name, permits.value, take.receive_nowait(), await take.receive()]
    return seen


def test_items_and_permits_are_kept_too() -> None:
    assert run_workflow(items_and_permits).result() == [0, 1, "t", 1, 2, 3]


@workflow
async def handed_over() -> list[str | int]:
    """Who waits is woken, and loses in the same moment."""
    send, take = open_memory_channel(0)
    permits = Semaphore(0)
    seen: list[str | int] = []

    async def gives() -> None:
        permits.release()
        send.send_nowait("item")

    async def waits() -> None:
        await take.receive()

    async def acquires() -> None:
        await permits.acquire()

    async with open_nursery() as nursery:
        with move_on_after("1 s"):
            async with open_nursery() as waiting:

                async def loses() -> None:
                    await sleep("1 ms")
                    await gives()
                    waiting.cancel_scope.cancel()

                waiting.start_soon(loses)
                waiting.start_soon(waits)
                waiting.start_soon(acquires)
        seen += [permits.value, take.receive_nowait()]
        nursery.cancel_scope.cancel()
    return seen


def test_what_a_cancelled_branch_was_woken_for_is_still_there() -> None:
    assert run_workflow(handed_over).result() == [1, "item"]


def test_accounts_are_exact_wherever_the_process_dies() -> None:
    source = random.Random(7)
    payments = [(source.choice(["deposit", "withdrawal"]), source.randrange(1, 100)) for _ in range(12)]
    messages = [Message(name, amount, after=0.015 * (n // 2)) for n, (name, amount) in enumerate(payments)]
    messages.append(Message("end", len(payments), after=0.05))
    wanted = sum(amount if name == "deposit" else -amount for name, amount in payments)
    assert run_workflow(account, messages=messages).result() == [wanted, len(payments)]
    explore(account, messages=messages)


@pytest.mark.slow(reason="kills a program fifteen times")
def test_accounts_are_exact_after_fifteen_kills(database_dsn: str) -> None:
    source = random.Random(15)
    environment = {**os.environ, "PYTHONPATH": f"{TOP / 'src'}:{TOP}"}
    command = [sys.executable, "-m", "tests.reports.accounts", database_dsn]

    def begin() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, cwd=TOP, env=environment, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"serving\n"
        return process

    with App(at=database_dsn, name="accounts").in_thread() as client:
        runs = [client.start(account, id=f"account-{n}") for n in range(3)]
        wanted = [0] * len(runs)
        counts = [0] * len(runs)
        process = begin()
        try:
            for _ in range(KILLS):
                for _ in range(10):
                    number, name, amount = source.randrange(3), source.choice(["deposit", "withdrawal"]), 1
                    amount = source.randrange(1, 1_000)
                    runs[number].send(name, amount)
                    counts[number] += 1
                    wanted[number] += amount if name == "deposit" else -amount
                process.send_signal(signal.SIGKILL)
                process.wait(BOUND_S)
                process.stdout.close()
                process = begin()
            for run, count in zip(runs, counts, strict=True):
                run.send("end", count)
            found = [run.result(BOUND_S) for run in runs]
        finally:
            process.kill()
            process.wait(BOUND_S)
            process.stdout.close()
    assert found == [[total, count] for total, count in zip(wanted, counts, strict=True)]
    assert_invariants(database_dsn)
