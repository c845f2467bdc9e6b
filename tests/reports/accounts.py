"""Accounts whose payments are messages, on an App of a process that dies: ``python -m tests.reports.accounts DSN``."""

from __future__ import annotations

import sys

import trio

from penstock.durable import App, continue_as_new, first, receive, sleep, step, workflow

ROUNDS = 5


@step
async def book(total: int, amount: int) -> int:
    return total + amount


@workflow(name="account")
async def account(total: int = 0, seen: int = 0, expected: int = -1) -> list[int]:
    """Until as many payments came as it was told of. Each round ends in an alternative that wins."""
    for _ in range(ROUNDS):
        if seen == expected:
            return [total, seen]
        won = await first(
            deposit=receive("deposit", int),
            withdrawal=receive("withdrawal", int),
            end=receive("end", int),
            tick=sleep("30 ms"),
        )
        match won.name:
            case "deposit":
                total, seen = await book(total, won.value or 0), seen + 1
            case "withdrawal":
                total, seen = await book(total, -(won.value or 0)), seen + 1
            case "end":
                expected = won.value if won.value is not None else -1
            case _:
                pass
    return continue_as_new(total, seen, expected)


async def main(dsn: str) -> None:
    async with App(account, at=dsn, name="accounts"):
        print("serving", flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
