"""Runs that a program begins and another one goes on with: ``from tests.reports.handover import main; main(DSN)``."""

from __future__ import annotations

from penstock.durable import App, receive, workflow
from tests.reports.steps import act

QUEUE = "one at a time"


async def ingest(number: int) -> str:
    """The program is killed where it waits, between two steps."""
    await act(f"observed {number}")
    await act(f"set up {number}")
    await receive("go", int)
    return await act(f"ingested {number}")


@workflow
async def free(number: int) -> str:
    return await ingest(number)


@workflow(queue=QUEUE)
async def queued(number: int) -> str:
    return await ingest(number)


def main(dsn: str) -> None:
    App(free, queued, at=dsn).main()
