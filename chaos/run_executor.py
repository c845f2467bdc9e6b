"""An executor of `chaos.runs`: `python -m chaos.run_executor`, against the engine and the ledger that the environment
names. And its workflows, which the attack starts."""

from __future__ import annotations

import os
from typing import Any, Final

import psycopg
import trio

from penstock.durable import App, child, first, move_on_after, open_nursery, receive, sleep, step, workflow

ENGINE, LEDGER, STEP_RETRIES = "CHAOS_ENGINE", "CHAOS_LEDGER", "CHAOS_STEP_RETRIES"
TABLES: Final = """
CREATE TABLE booked (number int NOT NULL, place int NOT NULL);
CREATE TABLE undone (number int NOT NULL)"""
"""Without keys: what is done twice is there twice."""
FAMILY_EVERY: Final = 5
RETRIES: Final = 20

_retries: Final = int(os.environ.get(STEP_RETRIES, str(RETRIES)))
_ledger: Final = os.environ.get(LEDGER, "postgresql:///unused")


@step(retries=_retries, first=0.05, cap=0.5)
async def square(n: int) -> int:
    await trio.sleep(0.01)
    return n * n


@step.transaction(at=_ledger, retries=_retries, first=0.05, cap=0.5)
def book(tx: psycopg.Connection[Any], number: int, place: int) -> int:
    tx.execute("INSERT INTO booked VALUES (%s, %s)", (number, place))
    return place


@step.transaction(at=_ledger, retries=_retries, first=0.05, cap=0.5)
def undo(tx: psycopg.Connection[Any], number: int) -> None:
    tx.execute("INSERT INTO undone VALUES (%s)", (number,))


@workflow
async def part(number: int) -> int:
    await sleep(0.02)
    return await square(number) + 1


@workflow
async def errand(number: int) -> int:
    squares: list[int] = []

    async def add(n: int) -> None:
        squares.append(await square(n))

    try:
        await book(number, 1)
        async with open_nursery() as nursery:
            for n in range(3):
                nursery.start_soon(add, number + n)
        won = await first(reported=receive("go", int), late=sleep("10 min"))
        more = await child(part, number) if number % FAMILY_EVERY == 0 else 0
        await book(number, 2)
        return sum(squares) + more + (won.value or 0)
    except BaseException:  # a cancel comes in a group out of a nursery
        with move_on_after("1 h", shield=True):
            await undo(number)
        raise


def result_of(number: int) -> int:
    """What an undisturbed run gives that was told its number."""
    more = number * number + 1 if number % FAMILY_EVERY == 0 else 0
    return sum((number + n) ** 2 for n in range(3)) + more + number


if __name__ == "__main__":
    App(errand, part, at=os.environ[ENGINE], backend="trio").main()
