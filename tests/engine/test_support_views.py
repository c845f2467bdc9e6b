"""The views for people: what they say of work in every state, and that the queries of docs/support.md run and find."""

from __future__ import annotations

import base64
import functools
import re
from typing import Any, Final, cast
from uuid import uuid4

import msgspec
import psycopg
import pytest
import trio

from penstock.core.rules.state import OWN_TIMERS, HistoryKind, TokenState
from penstock.engine.requests.ids import show_job
from penstock.runtime import migrate
from penstock.settings import Secret, Settings
from penstock.store.db.placement import placed
from penstock.testing.definitions import definition, end, linear, service
from penstock.wire.edits import VariablesEdit
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.house.sources import TOP
from tests.shapes import user
from tests.shares import mostly_slow
from tests.store.catalog import views
from tests.store.populate import populate

KEYS: Final = Secret("k1=" + base64.b64encode(b"k" * 32).decode())
RECIPE, *BLOCKS = re.findall(
    r"^```sql\n(.*?)^```$", (TOP / "docs" / "support.md").read_text(), re.DOTALL | re.MULTILINE
)
QUERIES: Final = [query for block in BLOCKS for query in block.strip().split(";\n")]


@pytest.fixture
async def populated(make_driver: MakeDriver) -> Driver:
    driver = make_driver()
    await populate(driver)
    again = linear(2, definition_id="done", job_type="done") | {"name": "newer"}
    await driver.upload(again)
    return driver


@pytest.mark.parametrize(
    "schema", mostly_slow(["penstock", "public"], quick=["penstock"], reason="a database of everything")
)
async def test_the_pages_role_runs_the_pages_queries(
    make_driver: MakeDriver, empty_database_dsn: str, schema: str
) -> None:
    """In a new database, and in one with the tables in `public`; the role logs in and has a right to nothing else."""
    made = await trio.to_thread.run_sync(
        migrate.run,
        Settings(postgres_dsn=Secret(empty_database_dsn), db_schema=None if schema == "penstock" else schema),
    )
    assert made is not None
    driver = make_driver(dsn=await placed(empty_database_dsn, None))
    await populate(driver)
    await driver.upload(linear(2, definition_id="done", job_type="done") | {"name": "newer"})
    ((id, key),) = driver.rows("SELECT to_hex(id), id FROM instance WHERE business_key = 'leased'")
    support, ada = f"support_{uuid4().hex}", f"ada_{uuid4().hex}"
    own = {
        " support": f" {support}",
        " ada": f" {ada}",
        "SCHEMA penstock ": f"SCHEMA {schema} ",
        "TO penstock;": f"TO {schema};",
    }
    examples = {"1a2b3c4d5e6f": id, "order-4711": "leased", "'order'": "'done'", '"paid"': '"done"'}
    recipe = functools.reduce(lambda text, each: text.replace(*each), own.items(), RECIPE)
    with psycopg.connect(empty_database_dsn, autocommit=True) as owner:
        owner.execute(recipe.encode())
        try:
            with psycopg.connect(empty_database_dsn, user=ada, autocommit=True) as reader:
                assert reader.execute("SELECT penstock_number(%s)", [id]).fetchall() == [(key,)]
                for query in QUERIES:
                    query = functools.reduce(lambda text, each: text.replace(*each), examples.items(), query)
                    assert reader.execute(query.encode()).fetchall(), query
                for view in views(driver.dsn) - {"penstock_branches"}:
                    assert reader.execute(f"SELECT * FROM {view}".encode()).fetchall(), view
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    reader.execute(b"SELECT FROM instance")
        finally:
            owner.execute(f"DROP ROLE {ada}; DROP OWNED BY {support}; DROP ROLE {support}".encode())


async def test_an_instance_in_the_views_is_what_the_engine_shows(populated: Driver) -> None:
    found = populated.rows(
        "SELECT id, definition, version, status, business_key, open_steps, failure, variables FROM penstock_instances"
    )
    assert len(found) == len(populated.rows("SELECT FROM instance"))
    for id, definition_id, version, status, key, open_steps, failure, variables in found:
        shown = await populated.view(id)
        assert (definition_id, version, status, key) == (
            shown.definition_id, shown.definition_version, shown.status, shown.business_key,
        )  # fmt: skip
        assert list(dict.fromkeys(open_steps)) == list(shown.current_step_ids)
        assert failure == shown.failure_reason
        assert variables == await populated.variables(id)


@pytest.mark.slow(reason="a database of everything")
async def test_every_entry_of_the_history_is_among_the_steps(populated: Driver) -> None:
    for id, key in populated.rows("SELECT id, number FROM penstock_instances WHERE left(definition, 5) <> 'code:'"):
        shown = {each.step_id: each.status in ("PENDING", "RUNNING") for each in await populated.history(id)}
        rows = populated.rows("SELECT step, bool_or(open) FROM penstock_steps WHERE number = %s GROUP BY 1", key)
        assert {step for step, _ in rows} == shown.keys()


async def test_jobs_are_shown_with_their_state_and_holder(populated: Driver) -> None:
    rows = populated.rows(
        "SELECT job_type, state, worker, lease_until IS NOT NULL, back_at IS NOT NULL, definition, step"
        " FROM penstock_jobs WHERE definition IN ('leased', 'queued', 'backoff', 'dispatched') ORDER BY 1"
    )
    assert rows == [
        ("backoff", "BACKOFF", None, False, True, "backoff", "a"),
        ("dispatched", "DISPATCHED", None, True, False, "dispatched", "task-1"),
        ("leased", "LOCKED", "w1", True, False, "leased", "task-1"),
        ("queued", "READY", None, False, False, "queued", "task-1"),
    ]
    ids = {id for (id,) in populated.rows("SELECT id FROM penstock_jobs WHERE definition = 'queued'")}
    assert ids == {job.id for job in await populated.poll("queued")}


async def test_an_attempt_in_the_view_is_what_the_engine_shows(populated: Driver) -> None:
    """Of each job that ever was, in every state."""
    found = populated.rows(
        "SELECT job, attempt, status, worker, started_at, ended_at, reason, error_code, parameters, parameters_bytes,"
        " progress, result FROM penstock_attempts WHERE left(definition, 5) <> 'code:' ORDER BY number, job, attempt"
    )
    by_job = {job: [row[1:] for row in found if row[0] == job] for job, *_ in found}
    assert {status for _, _, status, *_ in found} >= {"RUNNING", "COMPLETED", "FAILED", "LEASE_EXPIRED", "PARKED"}
    every = populated.rows(
        "SELECT instance_id, token_id, seq FROM history UNION SELECT instance_id, id, seq FROM token"
    )
    shown: dict[str, list[tuple[Any, ...]]] = {}
    for job in every:
        id = show_job(*job)
        (of_code,) = populated.rows(
            "SELECT left(d.id, 5) = 'code:' FROM instance i JOIN definition d ON d.key = i.definition WHERE i.id = %s",
            job[0],
        )[0]
        for one in [] if of_code else await populated.engine.attempts.of(id):
            parameters, progress, result = (
                None if raw is None else msgspec.json.decode(cast(bytes, raw))
                for raw in (one.parameters, one.progress, one.result)
            )
            shown.setdefault(id, []).append(
                (one.attempt, one.status, one.worker, one.started_at, one.ended_at, one.reason, one.error_code,
                 parameters, one.parameters_bytes, progress, result)
            )  # fmt: skip
    assert by_job == shown


async def test_attempts_are_found_by_what_they_were_given(driver: Driver) -> None:
    body = linear(1, definition_id="fetch", job_type="fetch") | {"recordAttempts": True}
    await driver.upload(body)
    for host in "ab":
        await driver.start("fetch", {"url": f"https://{host}.example"})
    for job in await driver.poll("fetch"):
        await driver.fail(job, "503", retryable=False)
    found = driver.rows(
        "SELECT step, attempt, status, reason, parameters FROM penstock_attempts"
        " WHERE definition = 'fetch' AND parameters->>'url' = 'https://b.example'"
    )
    assert found == [("task-1", 1, "FAILED", "503", {"url": "https://b.example"})]


async def test_what_an_instance_was_started_with_stays_whatever_is_done_to_it(driver: Driver) -> None:
    id = await driver.run(definition(service("first", "ask"), user("ask"), end()), {"amount": 1})
    await driver.complete(await driver.one("work"), {"amount": 0})
    for amount in (b"2", b"3"):
        await driver.engine.repair.edit_variables(id, VariablesEdit(set=msgspec.Raw(b'{"amount": %s}' % amount)))
        found = driver.rows("SELECT variables, start_variables FROM penstock_instances WHERE number = %s", number(id))
        assert found == [({"amount": int(amount)}, {"amount": 1})]


async def test_sealed_values_are_not_opened_by_a_view(make_driver: MakeDriver) -> None:
    driver = make_driver(encryption_keys=KEYS)
    await driver.upload(linear(1, definition_id="secret", job_type="secret") | {"recordAttempts": True})
    id = (await driver.start("secret", {"card": "4711"})).id
    job = await driver.one("secret")
    await driver.heartbeat(job, progress=b'"4711"')
    await driver.complete(job, {"receipt": "4711"})
    ((variables, start),) = driver.rows(
        "SELECT variables, start_variables FROM penstock_instances WHERE number = %s", number(id)
    )
    ((parameters, result, progress),) = driver.rows(
        "SELECT parameters, result, progress FROM penstock_attempts WHERE number = %s", number(id)
    )
    for sealed, names in (
        (variables, ["card", "receipt"]), (start, ["card"]), (parameters, ["card"]), (result, ["receipt"]),
    ):  # fmt: skip
        assert sorted(sealed) == names
        assert [list(value) for value in sealed.values()] == [["$enc"]] * len(names)
    assert list(progress) == ["$enc"]


@pytest.mark.parametrize(("function", "names"), [("penstock_state", TokenState), ("penstock_kind", HistoryKind)])
async def test_every_number_has_its_name(make_driver: MakeDriver, function: str, names: Any) -> None:
    """One that comes new goes into schema.sql and into the newest migration."""
    rows = make_driver().rows(
        f"SELECT n, {function}(n::smallint) FROM unnest(%s::int[]) AS n", [int(each) for each in names]
    )
    assert dict(rows) == {int(each): each.name for each in names}


async def test_every_timer_has_a_kind(populated: Driver) -> None:
    for index in (0, *OWN_TIMERS):
        populated.rows(
            "INSERT INTO timer (token_id, seq, fire_at, instance_id, index) VALUES (7, 7, now(), 7, %s) RETURNING 1",
            index,
        )
    rows = populated.rows("SELECT kind, step FROM penstock_timers WHERE number = 7")
    assert len(rows) == len(OWN_TIMERS) + 1
    assert not [kind for kind, step in rows if step is not None or not kind.isalpha()]
    populated.rows("DELETE FROM timer WHERE token_id = 7 RETURNING 1")
