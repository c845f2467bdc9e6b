"""The schema: ``schema.sql``, the one truth about the tables, and the numbered migrations that lead to it.

An empty database gets ``schema.sql``, which stands at the top of the repository and, in a wheel, inside the package. An
older one gets the files of ``migrations/`` that it lacks, each in a transaction of its own, or, where its first line is
``-- concurrently``, statement by statement: indexes of large tables, whose writers go on meanwhile. Both end with the
same tables; `tests/engine/test_schema_versions.py` compares them. How to add a version: CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

import psycopg
import trio
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import PenstockError
from penstock.log.log import get_logger
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import first_line
from penstock.store.db.statements import SQL

log = get_logger("penstock.store.schema")

LOCK_TIMEOUT_MS: Final = 2000
"""Of a migration, for a lock on a table: what waits for it longer holds up everybody who uses the table."""
LOCK_TRIES: Final = 15
LOCK_PAUSE_S: Final = 1.0
"""Between two tries, so that others get on."""
CONCURRENTLY: Final = "-- concurrently\n"
BUILD_POLL_S: Final = 0.2
"""How often an engine asks whether another one's build of indexes has ended."""
RETIRED: Final[Mapping[str, int]] = MappingProxyType({"instance_business_key": 13})
"""Indexes that engines of a version and later have no use for: they go when none older lives."""


class SchemaMismatch(PenstockError):
    """The database has a schema that this version can't work with."""


def schema_sql() -> str:
    """Return the text of ``schema.sql``: of the wheel if this is one, else of the checkout that the package runs
    from."""
    packaged = resources.files("penstock") / "schema.sql"
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).parents[4] / "schema.sql").read_text(encoding="utf-8")


def _load() -> Mapping[int, str]:
    found: dict[int, str] = {}
    for file in resources.files("penstock.store").joinpath("migrations").iterdir():
        number, _, rest = file.name.partition("_")
        if rest.endswith(".sql"):
            if int(number) in found:
                raise ValueError(f"{file.name}: another migration has this number")
            found[int(number)] = file.read_text(encoding="utf-8")
    return MappingProxyType(dict(sorted(found.items())))


MIGRATIONS: Mapping[int, str] = _load()
"""By the version that each leads to, from the one before."""

SCHEMA_VERSION: Final = max(MIGRATIONS)
"""The newest, and that of ``schema.sql``."""


async def ensure_schema(connection: TrioConnection) -> int:
    """Bring the database to `SCHEMA_VERSION`; the version it had before, 0 for an empty one.

    Raises SchemaMismatch, and PenstockError when this account may not change tables or others don't let go of one.
    Safe when several engines start at once: a session lock is held meanwhile. Each version is applied whole or not;
    one that builds indexes begins anew when it was broken off.
    """
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":  # any text that it lacks would fail in the middle of the work
        raise SchemaMismatch(f"the database has the encoding {encoding}; Penstock needs one with UTF8")
    await connection.fetch(SQL["lock_schema"])
    try:
        found = await schema_version(connection)
        if not found:
            await _make_schema(connection)
            await _apply(connection, schema_sql())
            return 0
        if found > SCHEMA_VERSION:
            raise SchemaMismatch(_too_new(found))
        applied = found
        while applied < SCHEMA_VERSION and not MIGRATIONS[applied + 1].startswith(CONCURRENTLY):
            applied += 1
            await _apply(connection, MIGRATIONS[applied], applied)
    finally:
        if not connection.closed:  # else the server has let go of it, and what was raised tells more
            await connection.fetch(SQL["unlock_schema"])
    if applied < SCHEMA_VERSION:
        await _build(connection, applied + 1)
        await ensure_schema(connection)
    else:
        await _retire(connection)
    return found


async def schema_version(connection: TrioConnection) -> int:
    """That of the database; 0 when it has no tables of ours."""
    if not (await connection.fetch(SQL["schema_exists"]))[0][0]:
        return 0
    return cast(int, (await connection.fetch(SQL["schema_version"]))[0][0])


async def check_schema(connection: TrioConnection) -> None:
    """Raises SchemaMismatch unless the database is at `SCHEMA_VERSION`; changes nothing."""
    found = await schema_version(connection)
    if found == SCHEMA_VERSION:
        return
    if found > SCHEMA_VERSION:
        raise SchemaMismatch(_too_new(found))
    state = f"schema version {found}, this penstock needs {SCHEMA_VERSION}" if found else "none of Penstock's tables"
    raise SchemaMismatch(f"the database has {state}: run `penstock migrate`, or allow it with App(..., migrate=True)")


def _too_new(found: int) -> str:
    return (
        f"the database has schema version {found}, this penstock knows versions up to {SCHEMA_VERSION}:"
        " use a newer one, or restore the database from before its upgrade"
    )


async def _make_schema(connection: TrioConnection) -> None:
    """The schema that the tables are to be in, when it is not there."""
    try:
        await connection.execute(SQL["make_schema"])
    except psycopg.errors.InsufficientPrivilege as error:
        raise PenstockError(
            f"{first_line(error)}: run `penstock migrate` with an account that may create tables and schemas,"
            " or make one for it and name that with `db_schema`"
        ) from error


async def _build(connection: TrioConnection, version: int) -> None:
    """Apply a version that builds indexes beside their tables' writers.

    It waits for transactions that have begun before it, so nobody may wait for it within a statement: who wants to
    build as well asks now and then. As long as it takes; a start that is broken off leaves it to the next one.
    """
    while not (await connection.fetch(SQL["try_lock_builds"]))[0][0]:  # noqa: ASYNC110 - another process has it
        await trio.sleep(BUILD_POLL_S)
    try:
        if (await connection.fetch(SQL["schema_version"]))[0][0] >= version:
            return  # another engine has built them
        log.info("indexes are built; they wait for open transactions, and nothing waits for them", version=version)
        await connection.fetch(SQL["wait_for_builds"])
        lines = [line for line in MIGRATIONS[version].splitlines() if not line.startswith("--")]
        for statement in "\n".join(lines).split(";")[:-1]:
            await connection.fetch(statement.encode())
        await connection.fetch(SQL["record_version"], (version,))
    except psycopg.errors.InsufficientPrivilege as error:
        raise _may_not(error) from error
    finally:
        if not connection.closed:
            await connection.fetch(SQL["unlock_builds"])


async def _retire(connection: TrioConnection) -> None:
    """Drop indexes that only older engines use, once none of them lives; if not now, then at another start."""
    for name, version in RETIRED.items():
        if not (await connection.fetch(SQL["index_exists"], (name,)))[0][0]:
            continue
        if await connection.fetch(SQL["older_engines"], (version,)):
            continue
        if (await connection.fetch(SQL["try_lock_builds"]))[0][0]:
            try:
                await connection.fetch(b"SET lock_timeout = %d" % LOCK_TIMEOUT_MS)
                await connection.fetch(f"DROP INDEX CONCURRENTLY IF EXISTS {name}".encode())
            except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege) as error:
                log.info(
                    "an unused index could not be dropped, and stays for now", index=name, reason=first_line(error)
                )
            finally:
                if not connection.closed:
                    await connection.fetch(b"RESET lock_timeout")
                    await connection.fetch(SQL["unlock_builds"])


def role_without_rights(error: BaseException, dsn: str) -> PenstockError | None:
    """What to say of an error, or of one in a group, that the server gives a role which may not do what engines do."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if not isinstance(error, psycopg.errors.InsufficientPrivilege):
        return None
    role = str(conninfo_to_dict(dsn).get("user") or "of this program")
    return PenstockError(
        f"{first_line(error)}: the role '{role}' does not own Penstock's tables. Connect as the role that owns them:"
        " the one that ran `penstock migrate`"
    )


def _may_not(error: psycopg.errors.InsufficientPrivilege) -> PenstockError:
    return PenstockError(f"{first_line(error)}: run `penstock migrate` with an account that may create tables")


async def _apply(connection: TrioConnection, text: str, version: int | None = None) -> None:
    """Run a script in one transaction, again when a lock is not to be had."""
    for tried in range(1, LOCK_TRIES + 1):
        try:
            # a client cursor uses the simple protocol, which takes one text with many statements
            async with connection.transaction(), psycopg.AsyncClientCursor(connection) as cursor:
                await cursor.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}".encode())
                await cursor.execute(text.encode())
                if version is not None:
                    await connection.fetch(SQL["record_version"], (version,))
        except psycopg.errors.LockNotAvailable as error:
            if tried == LOCK_TRIES:
                raise PenstockError(
                    f"schema version {version or SCHEMA_VERSION} could not be applied: {first_line(error)}"
                ) from error
        except psycopg.errors.ObjectInUse as error:  # a migration that says so itself
            raise SchemaMismatch(first_line(error)) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise _may_not(error) from error
        else:
            return
        await trio.sleep(LOCK_PAUSE_S)
