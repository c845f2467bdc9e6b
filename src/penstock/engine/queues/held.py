"""Whose rows other transactions hold: of the group-commit queues whose items are each about one job."""

from __future__ import annotations

from typing import Protocol, TypeVar

from penstock.store.db.connection import TrioConnection
from penstock.store.rows import jobs as store


class AboutJob(Protocol):
    """An item about one job."""

    job: store.JobKey


J = TypeVar("J", bound=AboutJob)


async def find_jobs_locked_elsewhere(connection: TrioConnection, items: list[J]) -> list[J]:
    """Those whose tokens are held now."""
    held = await store.tokens_locked_elsewhere(connection, [item.job.token for item in items])
    return [item for item in items if item.job.token in held]
