"""What an operation is: a row each, of which both servers, both clients, permissions and the reference are made.

Imports nothing of engine or client.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

from penstock.api import (
    audit,
    batches,
    bulk,
    declared,
    definitions,
    drafts,
    instances,
    jobs,
    messages,
    queues,
    repair,
    runs,
    schedules,
    sql_requests,
    status,
    tasks,
    updates,
    workers,
)
from penstock.api.operation import DeclaredOperation, Row

__all__ = [
    "ROUTED", "ROWS", "DeclaredOperation", "Row", "audit", "batches", "bulk", "declared", "definitions", "drafts",
    "instances", "jobs", "messages", "queues", "repair", "rows_of", "runs", "schedules", "sql_requests", "status",
    "tasks", "updates", "workers",
]  # fmt: skip

NOUNS: Final = (
    queues, schedules, batches, bulk, repair, audit, definitions, drafts, instances, jobs, messages, workers, tasks,
    status, sql_requests, updates, runs, declared,
)  # fmt: skip


def rows_of(noun: ModuleType) -> list[Row]:
    """List the operations of a noun's module, in their order."""
    return [value for value in vars(noun).values() if isinstance(value, DeclaredOperation)]


ROWS: Final[tuple[Row, ...]] = tuple(row for noun in NOUNS for row in rows_of(noun))
"""All of them."""
ROUTED: Final[tuple[Row, ...]] = tuple(row for row in ROWS if row.is_over_rest)
"""Those that REST has."""
