"""What durable workflows take: a JSON schema a job type. One function per statement of ``queries/signatures.sql``."""

from __future__ import annotations

from typing import cast

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL


async def read(connection: TrioConnection, job_type: str) -> str | None:
    """Return the schema of the arguments, as JSON; None where none is known."""
    rows = await connection.fetch(SQL["read_signature"], (job_type,))
    return cast(str, rows[0][0]) if rows else None


async def write(connection: TrioConnection, job_type: str, arguments: str) -> None:
    """Keep a schema in place of the one before."""
    await connection.fetch(SQL["write_signature"], (job_type, arguments))


async def delete(connection: TrioConnection, job_type: str) -> None:
    """Of what is served by a program that publishes none."""
    await connection.fetch(SQL["delete_signature"], (job_type,))
