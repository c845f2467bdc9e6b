"""A workflow that is called, for executors that die."""

from __future__ import annotations

from penstock.durable import receive, step, update, workflow


@step
async def book(value: int) -> int:
    return value


@workflow
async def tally() -> list[int]:
    seen: list[int] = []

    @update
    async def add(value: int) -> int:
        seen.append(await book(value))
        return len(seen)

    @add.validator
    def check(value: int) -> None:
        if value < 0:
            raise ValueError("it is negative")

    await receive("end", bool)
    return seen
