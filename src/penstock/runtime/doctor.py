"""`penstock doctor`: looks at settings, database, engines and broker, and says what to do. Changes nothing.

Each check is a function from what was read to findings; what can't be read is a finding, not an end of the others.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
import trio

import penstock
from penstock.build import shown_version
from penstock.distribution import NAME, OTHER, REPAIR, find_other
from penstock.runtime.operator import NAME_IT, data_dir_of, database_of, without_database
from penstock.settings import DispatchMode, Settings, did_you_mean, unknown_environment
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, DatabaseError, first_line, with_defaults
from penstock.store.db.placement import placed
from penstock.store.db.pooler import TransactionPooling, refuse_transaction_pooling
from penstock.store.db.replica import Replica
from penstock.store.db.schema import SCHEMA_VERSION, schema_version
from penstock.store.embedded.cluster import EmbeddedPostgresError
from penstock.store.rows import checkup
from penstock.store.rows.activity import KnownEngine, read_engines

CONNECT_TIMEOUT_S: Final = 10.0
BROKER_TIMEOUT_S: Final = 5.0
SERVER_MIN_VERSION: Final = 150_000
CRASHES_IN_RECHECKS: Final = range(180_000, 180_006)
"""Known to have the defect of which docs/operations.md tells: 18.5 is of August 2026, the repair of October. In which
minor release that is was not to be had."""
CLOCK_MAX_DIFFERENCE_S: Final = 1.0
TRANSACTION_MAX_S: Final = 60.0
SLOT_MAX_TRANSACTIONS: Final = 1_000_000
SLOT_MAX_WAL_BYTES: Final = 8_000_000_000
"""Twice the `max_wal_size` that docs/operations.md recommends."""
DEAD_ROWS_MIN: Final = 100_000
DEAD_PER_ALIVE: Final = 5
WRAPAROUND_AGE: Final = 1_200_000_000
FREE_DISK_MIN_BYTES: Final = 2_000_000_000
BLOCK_BYTES: Final = 8_192
SHARED_BUFFERS_MIN_BYTES: Final = 256 * 1024 * 1024
WAL_MIN_MB: Final = 2_048
"""`max_wal_size` is in MB."""
HOT_TABLES: Final = ("token", "ready", "timer", "parked", "open_task", "dispatch_outbox")


class CheckLevel(StrEnum):
    OK = "ok"
    ADVICE = "advice"
    PROBLEM = "problem"


class DoctorFinding(msgspec.Struct, frozen=True):
    """What one look found. ``todo`` is empty where all is well."""

    verdict: CheckLevel
    subject: str
    found: str
    todo: str = ""


def ok(subject: str, found: str) -> DoctorFinding:
    return DoctorFinding(CheckLevel.OK, subject, found)


def advice(subject: str, found: str, todo: str) -> DoctorFinding:
    return DoctorFinding(CheckLevel.ADVICE, subject, found, todo)


def problem(subject: str, found: str, todo: str) -> DoctorFinding:
    return DoctorFinding(CheckLevel.PROBLEM, subject, found, todo)


def examine(settings: Settings) -> list[DoctorFinding]:
    """All findings, in the order in which they are to be repaired. Starts the embedded PostgreSQL if it does not run,
    and makes none."""
    return trio.run(_examine, settings, strict_exception_groups=True)


async def _examine(settings: Settings) -> list[DoctorFinding]:
    findings = [*check_distribution(penstock.__path__[0]), *check_environment(), *await _find_database(settings)]
    findings += check_disk(settings)
    if settings.replica_dsn is not None:
        findings.append(await _check_replica(settings, settings.replica_dsn.reveal()))
    if settings.dispatch_mode is DispatchMode.KAFKA_OUTBOX:
        findings += [await _check_broker(address) for address in settings.kafka_seed_brokers]
    findings.append(ok("penstock", shown_version()))
    return findings


async def _find_database(settings: Settings) -> list[DoctorFinding]:
    missing = without_database(settings)
    if missing is not None:
        return [problem("database", f"there is none in {missing}", f"{NAME_IT}; `penstock serve` makes one")]
    try:
        async with database_of(settings) as dsn:
            return await _examine_database(settings, dsn)
    except EmbeddedPostgresError as error:
        return [
            problem("database", error.reason, "repair what the message names, or name a PostgreSQL by postgres_dsn")
        ]
    except (DatabaseError, OSError, trio.TooSlowError) as error:
        return [problem("database", first_line(error) or "no answer", "start it, or correct postgres_dsn")]


async def _examine_database(settings: Settings, dsn: str) -> list[DoctorFinding]:
    with trio.fail_after(CONNECT_TIMEOUT_S):
        async with await TrioConnection.connect(with_defaults(dsn)) as first:
            pooler = await _check_pooler(first, with_defaults(dsn))
        if pooler.verdict is CheckLevel.PROBLEM:  # through it all that is looked at next may be somebody else's
            return [pooler]
        dsn = with_defaults(await placed(dsn, settings.db_schema))
        connection = await TrioConnection.connect(dsn)
    try:
        before = time.time()
        server = await checkup.server(connection)
        findings = [*check_server(server), check_clock(server.time_s, (before + time.time()) / 2)]
        findings += check_connections(server, settings)
        findings.append(pooler)
        version = await schema_version(connection)
        findings.append(check_schema(version))
        findings += check_holdups(await checkup.holdups(connection))
        if version:
            tables = await checkup.tables(connection)
            findings += check_rights(tables, may_create=await checkup.may_create(connection))
            findings += check_bloat(tables)
            findings += check_indexes(await checkup.invalid_indexes(connection))
            findings += check_logs(await checkup.logs(connection))
            findings += check_engines(await read_engines(connection), settings)
        return findings
    finally:
        connection.close_nowait()


def check_distribution(package: str) -> Iterator[DoctorFinding]:
    if found := find_other(package):
        yield problem(
            "installation",
            f"{found} is of another project ({OTHER}); its files and those of {NAME} replace each other",
            REPAIR,
        )


def check_environment() -> Iterator[DoctorFinding]:
    for name, nearest in unknown_environment().items():
        yield advice("settings", f"{name} means nothing to the engine{did_you_mean(nearest)}", "unset or rename it")


def check_server(server: checkup.ServerFacts) -> Iterator[DoctorFinding]:
    if server.version_number < SERVER_MIN_VERSION:
        yield problem("database", f"PostgreSQL {server.version}", "upgrade to 15 or newer")
    elif server.encoding != "UTF8":
        yield problem("database", f"the encoding is {server.encoding}", "make a database with ENCODING 'UTF8'")
    elif server.in_recovery:
        yield problem(
            "database",
            "the server is a standby, which takes no writes",
            "name the primary in postgres_dsn, or add target_session_attrs=read-write to it",
        )
    else:
        yield ok("database", f"PostgreSQL {server.version}{known_defect(server)}")
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        if server.settings[name] == "off":
            yield problem(
                "durability",
                f"{name} is off",
                "switch it on: without it a crash loses or breaks what the engine has answered",
            )
    if server.settings["synchronous_standby_names"] and not server.synchronous_standbys:
        yield problem(
            "durability", "no synchronous standby is there", "bring it back: PostgreSQL answers no commit until then"
        )
    if server.settings["autovacuum"] == "off":
        yield problem("autovacuum", "off", "switch it on: the tables token and ready need it")
    if server.oldest_transaction_age > WRAPAROUND_AGE:
        found = f"the oldest transaction id is {server.oldest_transaction_age:,} back"
        yield problem("autovacuum", found, "run VACUUM (FREEZE) now: at 2,000,000,000 the database takes no writes")
    if int(server.settings["shared_buffers"]) * BLOCK_BYTES < SHARED_BUFFERS_MIN_BYTES:
        yield advice("memory", "shared_buffers is below 256 MB", "set it to 25 % of the machine's memory")
    if int(server.settings["max_wal_size"]) < WAL_MIN_MB:
        found = f"max_wal_size is {server.settings['max_wal_size']} MB"
        yield advice(
            "checkpoints", found, "set it to 4GB, with checkpoint_timeout = 15min: else page images are most of the WAL"
        )
    if server.settings["client_connection_check_interval"] == "0":
        found = "client_connection_check_interval is 0"
        yield advice(
            "sessions",
            found,
            "set it to 5s: the statement of an engine that was killed then ends soon, and releases its locks",
        )


def known_defect(server: checkup.ServerFacts) -> str:
    """What it says of a server that our statements don't suffer by."""
    if server.version_number not in CRASHES_IN_RECHECKS:
        return ""
    return ", which crashes when it rechecks a row and prunes partitions; no statement of Penstock does that"


def check_clock(theirs_s: float, ours_s: float) -> DoctorFinding:
    found = f"this machine and the database differ by {abs(theirs_s - ours_s):.1f} s"
    if abs(theirs_s - ours_s) > CLOCK_MAX_DIFFERENCE_S:
        return advice("clock", found, "run NTP on both: ids hold the engine's time, and leases use the database's")
    return ok("clock", found)


def check_connections(server: checkup.ServerFacts, settings: Settings) -> Iterator[DoctorFinding]:
    free = int(server.settings["max_connections"]) - int(server.settings["superuser_reserved_connections"])
    each = settings.db_max_conns + 2  # its wake-ups, and in Kafka mode the election of the relay
    needed = settings.processes * each
    others = server.sessions - server.own_sessions
    found = f"{server.sessions} of {free} in use, {server.own_sessions} of them in this database"
    found += f"; an engine with these settings takes up to {needed}"
    if needed > free:
        yield problem("connections", found, "raise max_connections, or lower db_max_conns or processes")
    elif others + max(server.own_sessions, needed) > free:
        yield advice("connections", found, "raise max_connections: other databases leave too few")
    else:
        yield ok("connections", found)


async def _check_replica(settings: Settings, dsn: str) -> DoctorFinding:
    replica = Replica(Database(dsn, max_connections=1), settings.db_schema, max_lag_s=settings.replica_max_lag_seconds)
    try:
        found = await replica.problem()
    finally:
        with trio.CancelScope(shield=True):
            await replica.database.close(0)
    if found is not None:
        return advice(
            "replica", found, "correct replica_dsn, or repair the standby; lists are read from the primary meanwhile"
        )
    return ok("replica", "a standby that keeps up")


async def _check_pooler(connection: TrioConnection, dsn: str) -> DoctorFinding:
    try:
        await refuse_transaction_pooling(connection, dsn)
    except TransactionPooling as error:
        return problem("pooler", str(error), "pool_mode = session, or connect directly")
    return ok("pooler", "none, or one by session")


def check_schema(version: int) -> DoctorFinding:
    """``version`` is 0 where there are no tables of ours."""
    if not version:
        return advice(
            "schema", "no tables of Penstock's", "run `penstock migrate`, or start an engine that may make them"
        )
    if version < SCHEMA_VERSION:
        found = f"version {version}; this penstock needs {SCHEMA_VERSION}"
        return advice("schema", found, "run `penstock migrate`; engines of both versions may run meanwhile")
    if version > SCHEMA_VERSION:
        return problem("schema", f"version {version}; this penstock knows {SCHEMA_VERSION}", "use a newer penstock")
    return ok("schema", f"version {version}")


def check_holdups(holdups: list[checkup.Holdup]) -> Iterator[DoctorFinding]:
    for each in holdups:
        if each.age_s is not None and each.age_s > TRANSACTION_MAX_S:
            found = f"{each.what} is open for {each.age_s:.0f} s"
            yield advice("transactions", found, "end it: claims get slower while it keeps dead rows alive")
        elif each.age_transactions is not None and each.age_transactions > SLOT_MAX_TRANSACTIONS:
            found = f"{each.what} is {each.age_transactions:,} transactions behind"
            yield advice("transactions", found, "bring its reader back, or drop it with pg_drop_replication_slot")
        if each.wal_bytes is not None and each.wal_bytes > SLOT_MAX_WAL_BYTES:
            found = f"{each.what} keeps {each.wal_bytes / 1e9:.1f} GB of WAL on the database's disk"
            yield advice(
                "disk",
                found,
                "bring its reader back, or drop it with pg_drop_replication_slot: a full disk stops the database",
            )


def check_rights(tables: list[checkup.Table], *, may_create: bool) -> Iterator[DoctorFinding]:
    if locked := [table.name for table in tables if not table.may_write]:
        yield problem(
            "rights", f"no right to read and write {_names(locked)}", "grant them to the engine's account with GRANT"
        )
    foreign = [table.name for table in tables if not table.owned]
    if foreign or not may_create:
        found = "the engine's account can't make partitions" + (f": others own {_names(foreign)}" if foreign else "")
        yield advice("rights", found, "run `penstock migrate` daily with an account that may, or make it the owner")
    elif not locked:
        yield ok("rights", "tables can be read, written and made")


def check_bloat(tables: list[checkup.Table]) -> Iterator[DoctorFinding]:
    for table in tables:
        hot = table.name in HOT_TABLES
        if hot and table.dead_rows > max(DEAD_ROWS_MIN, DEAD_PER_ALIVE * table.alive_rows):
            found = f"{table.name} has {table.dead_rows:,} dead rows for {table.alive_rows:,} ({table.size_bytes:,} B)"
            yield advice("bloat", found, f"look for old transactions, then run VACUUM {table.name}")


def check_indexes(invalid: list[str]) -> Iterator[DoctorFinding]:
    for name in invalid:
        yield problem("indexes", f"{name} is not valid: its build was cut off", f"REINDEX INDEX CONCURRENTLY {name}")


def check_logs(logs: list[checkup.Log]) -> Iterator[DoctorFinding]:
    for log in logs:
        if log.made_for_s is None or log.made_for_s <= 0:
            found = f"{log.parent} has no partition for today"
            yield advice(
                "partitions", found, "run `penstock migrate`, or start an engine: otherwise its rows are never dropped"
            )
        if log.outside:
            found = f"{log.parent}_other holds rows"
            yield advice(
                "partitions", found, 'they are never dropped: see "How long things are kept" in docs/operations.md'
            )


def check_engines(engines: list[KnownEngine], settings: Settings) -> Iterator[DoctorFinding]:
    alive = [each for each in engines if each.left_s > 0]
    yield ok("engines", f"{len(alive)} live" + "".join(f", {each.description}" for each in alive))
    for each in alive:
        if each.dispatch_mode != settings.dispatch_mode:
            found = f"{each.description} dispatches by {each.dispatch_mode}, these settings by {settings.dispatch_mode}"
            yield problem(
                "engines", found, "give all engines the same dispatch_mode: an engine with another one does not start"
            )
        if each.schema_version < SCHEMA_VERSION:
            found = f"{each.description} knows schema version {each.schema_version} only"
            yield advice("engines", found, "restart it with this version when the upgrade is done")


def check_disk(settings: Settings) -> Iterator[DoctorFinding]:
    if not settings.embedded:
        yield ok("disk", "it is the disk of the database's server, which is not visible from here: watch it there")
        return
    data_dir = data_dir_of(settings)
    try:
        free = _free_bytes(data_dir)
    except OSError as error:
        why = f"{data_dir} can't be looked at: {error.strerror}"
        yield advice("disk", why, "name the engine's data_dir, and run this with the engine's account")
        return
    found = f"{free / 1e9:.1f} GB are free at {data_dir}"
    if free < FREE_DISK_MIN_BYTES:
        yield problem("disk", found, "free some space: a full disk stops the database")
    else:
        yield ok("disk", found)


def _free_bytes(path: Path) -> int:
    """Where it is, or would be made. Raises OSError."""
    try:
        return shutil.disk_usage(path).free
    except FileNotFoundError:
        if path == path.parent:
            raise
        return _free_bytes(path.parent)


async def _check_broker(address: str) -> DoctorFinding:
    host, _, port = address.rpartition(":")
    try:
        with trio.fail_after(BROKER_TIMEOUT_S):
            stream = await trio.open_tcp_stream(host.strip("[]"), int(port))
            await stream.aclose()
    except (OSError, trio.TooSlowError) as error:
        return problem("broker", f"{address}: {str(error) or 'no answer'}", "start it, or correct kafka_seed_brokers")
    return ok("broker", f"{address} takes connections")


def _names(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


__all__ = ["CheckLevel", "DoctorFinding", "examine"]
