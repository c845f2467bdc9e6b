"""What the console's pages cost the database by the number of instances: buffers and time of each of their requests.

    PYTHONPATH=src python -m benchmarks.console_pages [INSTANCES, default 1,000,000]

Fills a database by SQL (a fifth of the instances open, most of these waiting for a person, 2.5 % failed, 2.6 rows of
history each), asks what each page asks, through the engine, and prints the buffers that PostgreSQL counts for it and
the milliseconds of the second time. Exit code 1 when a request takes more buffers than `PAGES` allows, which is the
same for any number.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgspec
import trio

from benchmarks.calibration import print_line
from penstock.core.parsing.parsing import parse_definition
from penstock.engine.engine import Engine
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.repair.migrations import MigrationRequest
from penstock.engine.requests import ids
from penstock.engine.runs.code import CodeWorkflow
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.schema import ensure_schema
from penstock.store.embedded.embedded import embedded
from penstock.telemetry.metrics import Metrics
from penstock.testing.definitions import definition, end, service, step, timer
from penstock.wire.bulk import BulkFilter, BulkRequest
from penstock.wire.queue import QueuePolicy

BASE: Final = ids.first_instance(datetime.now(UTC) - timedelta(hours=23))
"""Ids of about a day ago."""
LIMIT: Final = 50
FILL: Final = (
    """INSERT INTO instance (id, started_at, ended_at, definition, status, vars, business_key, failure)
    SELECT {base} + n, now() - interval '1 day', CASE WHEN n % 5 > 0 THEN now() END, {key},
      CASE WHEN n % 5 = 0 THEN 0 WHEN n % 40 = 7 THEN 2 ELSE 1 END, '{{"amount": 1}}', 'order-' || n,
      CASE WHEN n % 40 = 7 THEN '50' || n % 4 || ' from ' || (ARRAY['bank', 'shop', 'post'])[1 + n % 3] END
    FROM generate_series(1, {n}) n""",
    """INSERT INTO token (id, instance_id, step, job_type, seq, entered_at, state)
    SELECT {base} + n, {base} + n, CASE WHEN n % 25 = 0 THEN 0 ELSE 1 END, CASE WHEN n % 25 = 0 THEN {type} END, n,
      now() - interval '1 day', CASE WHEN n % 25 = 0 THEN 0 ELSE 2 END FROM generate_series(5, {n}, 5) n""",
    "INSERT INTO ready (job_type, seq, token_id) SELECT job_type, seq, id FROM token WHERE state = 0",
    "INSERT INTO parked SELECT id, id FROM token WHERE state = 2",
    """INSERT INTO open_task (seq, token_id, instance_id, entered_at, job_type, definition, step)
    SELECT seq, id, id, entered_at, {task}, {key}, 1 FROM token WHERE state = 2""",
    """INSERT INTO timer (token_id, seq, fire_at, instance_id, index)
    SELECT id, seq, now() + interval '9 days', id, 0 FROM token WHERE state = 2""",
    """INSERT INTO abnormal_end (status, instance_id, job_type, tokens, definition, step, cause)
    SELECT 2, id, {type}, '[]', definition, 'pay', failure_cause(failure) FROM instance WHERE status = 2""",
    """INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, attempt, step, kind, reason)
    SELECT {base} + n, 10 * n::bigint + k, {base} + n, 10 * n::bigint + k - 1, now(), now(), 1, k,
      CASE WHEN n % 40 = 7 AND k = 1 THEN 2 ELSE 1 END, CASE WHEN n % 40 = 7 AND k = 1 THEN 'no' END
    FROM generate_series(1, {n}) n, generate_series(0, CASE WHEN n % 5 = 0 THEN 0 ELSE 1 END) k""",
    # jobs in a queue with limits, of 1,000 flow keys
    "INSERT INTO ready_flow SELECT {crm}, 5, 'key-' || seq % 1000, seq, id FROM token WHERE state = 0",
    """INSERT INTO queue (name, policy, revision)
    SELECT 'q-' || k, '{{"concurrency": 1}}', 1 FROM generate_series(1, 200) k""",
    """INSERT INTO schedule (name, spec, variables, definition_id, paused, done_until)
    SELECT 's-' || k, '{{"definitionId": "orders", "every": "PT1H"}}', '{{}}', 'orders', true, now()
    FROM generate_series(1, 200) k""",
    """INSERT INTO schedule_run (schedule, at, instance_id, outcome)
    SELECT s.id, now() - k * interval '1 hour', {base} + k, 0 FROM schedule s, generate_series(1, 100) k""",
    # a run of a durable workflow, with a long journal
    """INSERT INTO instance (id, started_at, definition, status, vars)
    VALUES ({base}, now() - interval '1 day', {code}, 0, '{{}}')""",
    """INSERT INTO token (id, instance_id, step, job_type, seq, entered_at, state)
    VALUES ({base}, {base}, 0, {run}, 1, now(), 2)""",
    "INSERT INTO parked VALUES ({base}, {base})",
    """INSERT INTO journal (instance_id, pos, at, kind, attempt, path, name, payload)
    SELECT {base}, k, now(), 1, 1, '/' || k, 'step', '"done"' FROM generate_series(2, 20000) k""",
)
BLOCKS: Final = """SELECT coalesce(sum(pg_stat_get_blocks_fetched(oid)), 0)::bigint FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i', 'S')"""

Ask = Callable[[Engine], Awaitable[Any]]


@dataclass
class Page:
    """A request of a page, and the buffers that it may take at any number of instances."""

    ask: Ask
    buffers: int


class Cost(NamedTuple):
    buffers: int
    ms: float


def listed(**wanted: Any) -> Ask:
    """A page of a list as it is shown: ids, then the rows without their variables and where each stands."""

    async def ask(engine: Engine) -> None:
        found = await engine.instances.find_slice(InstanceFilter(**wanted), None, LIMIT)
        assert found.items, "an empty list costs nothing"
        await engine.instances.summaries(found.items)

    return ask


def counted(**wanted: Any) -> Ask:
    return lambda engine: engine.instances.count(InstanceFilter(**wanted))


def tasks(job_type: str | None = None) -> Ask:
    async def ask(engine: Engine) -> None:
        found = await engine.inbox.list_open(job_type, None, None, unclaimed=False, cursor=None, limit=LIMIT)
        assert found.items, "an empty list costs nothing"

    return ask


async def watched(engine: Engine) -> None:
    """One look for all who watch, and the reading of the overview that they share."""
    shown = [f"{BASE + 5 * n:x}" for n in range(1, LIMIT + 1)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.watch.wait, None, shown, FAILED, 0, "15m")
        await trio.lowlevel.checkpoint()
        await engine.watch.poll()
        await engine.watch.poll_overviews()


def migrated(definition_id: str) -> Ask:
    failed = BulkFilter(status="FAILED", definition_id=definition_id)
    return lambda engine: engine.bulk.preview(BulkRequest(action="migrate", filter=failed, dry_run=True))


OPEN_BUFFERS: Final = 20_000
"""Of a walk over open branches, a fifth of the instances here: for a page that is seldom open, every ten seconds."""
JOINED_BUFFERS: Final = 1_500_000
"""With the instance of each; beyond 500,000 open branches a tenth of them. Once a minute, while such a page is open."""
FAILED: Final = f"{BASE + 7:x}"
WAITING: Final = f"{BASE + 5:x}"
RUN: Final = f"{BASE:x}"
PAGES: Final[dict[str, Page]] = {
    "overview": Page(lambda engine: engine.overview.read("15m"), 6_000),
    "instances": Page(listed(), 2_000),
    "instances, failed": Page(listed(status="FAILED"), 2_000),
    "instances, failed for a cause": Page(listed(status="FAILED", cause="501 from bank"), 2_000),
    "instances, failed at a step": Page(listed(status="FAILED", definition_id="orders", step_id="pay"), 2_000),
    "instances, running": Page(listed(status="ACTIVE"), 4_000),
    "instances, waiting": Page(listed(status="WAITING"), 2_500),
    "instances, of a definition": Page(listed(definition_id="orders"), 2_000),
    "instances, by business key": Page(listed(business_key="order-7"), 100),
    "instances, by its beginning": Page(listed(business_key_prefix="order-7777"), 2_000),
    "instances, by a common beginning": Page(listed(business_key_prefix="order-"), 2_000),
    "instances, waiting, by its beginning": Page(listed(status="WAITING", business_key_prefix="order-9995"), 3_000),
    "count": Page(counted(), 20_000),
    "count, failed": Page(counted(status="FAILED"), 2_000),
    "count, failed for a cause": Page(counted(status="FAILED", cause="501 from bank"), 20_000),
    "count, waiting": Page(counted(status="WAITING"), 20_000),
    "count, by a common beginning": Page(counted(business_key_prefix="order-"), 20_000),
    "failures by cause": Page(lambda engine: engine.failures.read(None, "7d"), 12_000),
    "bulk, what it would meet": Page(
        lambda engine: engine.bulk.preview(
            BulkRequest(action="retry", filter=BulkFilter(status="FAILED", definition_id="orders"), dry_run=True)
        ),
        150_000,
    ),
    "instance, failed": Page(lambda engine: engine.diagnosis.state(FAILED), 100),
    "instance, waiting": Page(lambda engine: engine.diagnosis.state(WAITING), 100),
    "instance, history": Page(lambda engine: engine.diagnosis.history(FAILED, None, 500, output=False), 100),
    "instance, variables": Page(lambda engine: engine.instances.get(FAILED), 100),
    "instance, audit": Page(lambda engine: engine.instances.audit(FAILED), 200),
    "instance, its calls": Page(lambda engine: engine.runs.tree(WAITING), 100),
    "instance, whether it can be migrated": Page(
        lambda engine: engine.migrations.check(WAITING, MigrationRequest()), 200
    ),
    "bulk, whom a migration refuses": Page(migrated("orders"), 150_000),
    "durable run, branches": Page(lambda engine: engine.runs.tree(RUN), 1_000),
    "durable run, journal": Page(lambda engine: engine.runs.journal(RUN, None, LIMIT), 200),
    "schedules": Page(lambda engine: engine.schedules.list(None, LIMIT), 1_000),
    "a schedule": Page(lambda engine: engine.schedules.get("s-7"), 100),
    "queues": Page(lambda engine: engine.queues.list(None, LIMIT), 500),
    "a queue": Page(lambda engine: engine.queues.get("crm"), 20_000),
    "watched: 50 instances and overview": Page(watched, 8_000),
    "tasks": Page(tasks(), 1_000),
    "tasks, how many": Page(lambda engine: engine.inbox.count(), 1_000),
    "tasks of a type": Page(tasks(job_type="people"), 1_000),
    "jobs, waiting": Page(lambda engine: engine.open_work.jobs("WAITING", "pay", None, LIMIT), 1_000),
    "jobs, backing off": Page(lambda engine: engine.open_work.jobs("BACKOFF", "pay", None, LIMIT), 20_000),
    "jobs, under lease": Page(lambda engine: engine.open_work.jobs("LOCKED", None, None, LIMIT), OPEN_BUFFERS),
    "timers": Page(lambda engine: engine.open_work.timers(None, None, LIMIT), 4_000),
    "definitions": Page(lambda engine: engine.definitions.list_slice(None, None, LIMIT), 100),
    "definitions, what goes on": Page(
        lambda engine: engine.definition_use.activity(None, None, LIMIT), JOINED_BUFFERS + 4_000
    ),
    "definition, versions": Page(lambda engine: engine.definition_use.versions("orders", None, LIMIT), 100),
    "definition, variables": Page(lambda engine: engine.definition_use.variables("orders"), 3_000),
    "definition, what stands where": Page(lambda engine: engine.definition_use.tokens("orders", 1), JOINED_BUFFERS),
    "failed jobs": Page(lambda engine: engine.jobs.failed_slice(None, LIMIT), 4_000),
    "engines": Page(lambda engine: engine.overview.engines(), 100),
    "workers": Page(lambda engine: engine.overview.workers(None, LIMIT), 100),
    "bulk operations": Page(lambda engine: engine.bulk.list(None, LIMIT), 100),
}


async def fill(connection: TrioConnection, engine: Engine, count: int) -> None:
    """So many instances of the first version of one definition."""
    late = timer("end", "P9D", interrupting=True)
    approve = step("approve", "USER_TASK", jobType="people", nextStep="end", boundaryEvents=[late])
    form = {"type": "object", "properties": {"approved": {"title": "Approved", "type": "boolean"}}}
    shape = definition(service("pay", "approve", job_type="pay"), approve, end(), definition_id="orders")
    shape["metadata"] = {"forms": {"approve": {"schema": form}}}
    await engine.definitions.upload(parse_definition(msgspec.json.encode(shape)))
    order = CodeWorkflow("order")
    await engine.code.register(order)
    await engine.queues.put("crm", QueuePolicy(job_types=["crm"], concurrency_per_key=1))
    keys = dict(cast(Any, await connection.fetch("SELECT id, key FROM definition")))
    types = dict(cast(Any, await connection.fetch("SELECT name, id FROM job_type")))
    await connection.fetch("SET statement_timeout = 0")
    await connection.fetch(
        "SET session_replication_role = replica"
    )  # tests have triggers: instances end after they begin
    names = {"base": BASE, "n": count, "key": keys["orders"], "type": types["pay"], "task": types["people"]}
    names |= {"crm": types["crm"], "code": keys[order.definition_id], "run": types[order.job_type]}
    for statement in FILL:
        await connection.fetch(statement.format(**names).encode())
    await connection.fetch("SELECT setval('step_seq', $1::bigint)", (20 * count,))
    await connection.fetch("VACUUM (ANALYZE)")
    await connection.fetch("RESET statement_timeout")
    shape["name"] = "another version"
    await engine.definitions.upload(parse_definition(msgspec.json.encode(shape)))


async def cost(database: Database, engine: Engine, page: Page) -> Cost:
    """Of the second time: the first one plans, and reads the definition. The only connection is asked itself."""
    found = Cost(0, 0.0)
    for _ in range(2):
        before = await _blocks(database)
        began = time.perf_counter()
        await page.ask(engine)
        ms = (time.perf_counter() - began) * 1e3
        found = Cost(await _blocks(database) - before, ms)
        _forget(engine)
    return found


async def _blocks(database: Database) -> int:
    async with database.connection() as connection:
        await connection.fetch("SELECT pg_stat_force_next_flush()")
        await connection.fetch("SELECT 1")
        return cast(int, (await connection.fetch(BLOCKS))[0][0])


def _forget(engine: Engine) -> None:
    """Answers that are kept for some seconds would cost nothing."""
    engine.overview.forget()
    engine.failures.forget()
    engine.definition_use.forget()
    engine.open_work.forget()


@asynccontextmanager
async def filled(dsn: str, count: int) -> AsyncGenerator[tuple[Database, Engine]]:
    """A new database with so many instances, and an engine on its one connection."""
    database = Database(dsn, max_connections=1)
    try:
        async with database.connection() as connection:
            await ensure_schema(connection)
        engine = Engine(database, Settings(), Metrics("bench"), 1)
        async with trio.open_nursery() as nursery:
            for batcher in engine.batchers():
                nursery.start_soon(batcher.run)
            async with await TrioConnection.connect(dsn) as own:
                await fill(own, engine, count)
            yield database, engine
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await database.close(5.0)


async def measure(dsn: str, count: int) -> dict[str, Cost]:
    """Of each page, on a new database."""
    async with filled(dsn, count) as (database, engine):
        return {name: await cost(database, engine, page) for name, page in PAGES.items()}


async def main(count: int) -> int:
    """The exit code."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    try:
        async with embedded(directory) as dsn:
            print_line(dsn)
            found = await measure(dsn, count)
    finally:
        shutil.rmtree(directory)
    print(f"{count:,} instances")
    for name, one in found.items():
        over = "  MORE THAN IT MAY" if one.buffers > PAGES[name].buffers else ""
        print(f"  {name:36} {one.buffers:8,} buffers of {PAGES[name].buffers:8,} {one.ms:9.1f} ms{over}")
    return int(any(one.buffers > PAGES[name].buffers for name, one in found.items()))


if __name__ == "__main__":
    sys.exit(trio.run(main, int(sys.argv[1]) if sys.argv[1:] else 1_000_000))
