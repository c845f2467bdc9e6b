"""Issue 39, point 20: `penstock runs` asked databases only, and lost runs behind 10,000 other instances."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import trio
from typer.testing import CliRunner

from penstock.cli.app import app as command
from penstock.durable import App, receive, step, workflow
from penstock.durable.local import LocalRuns
from penstock.engine.requests import answers
from penstock.engine.requests.answers import COPIES, AnswerMemory
from penstock.engine.requests.ids import read_instance
from penstock.engine.runs.code import CodeWorkflow
from penstock.errors import BadRequest
from penstock.store.rows.journal import PAGE_MAX_BYTES
from penstock.testing import assert_replays
from tests import postgres
from tests.access.people import TOKENS, lines
from tests.engine import runs
from tests.engine.conftest import MakeDriver, make_driver
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

__all__ = ["make_driver"]
OTHERS = 10_500
RECORDS = 5_100


@workflow
async def asking(n: int) -> str:
    if n < 0:
        raise ValueError("n is below zero")
    return f"{n} {await receive('approved', str)}"


@step
async def one(n: int) -> int:
    return n


@workflow
async def counting(n: int) -> int:
    for each in range(n):
        await one(each)
    return n


class Place(NamedTuple):
    """An engine that asks for tokens, with a program that serves its runs."""

    url: str
    dsn: str

    def run(self, who: str | None, *words: str) -> tuple[int, str]:
        environment = {"PENSTOCK_TOKEN": TOKENS[who].text if who else "", "PENSTOCK_AT": self.url}
        reported = CliRunner().invoke(command, ["runs", *words], env=environment)
        return reported.exit_code, reported.output


@pytest.fixture(scope="module")
def place(postgres_server: postgres.PostgresServer) -> Generator[Place]:
    given: dict[str, Any] = {"authentication": True, "api_tokens": ",".join(lines())}
    with postgres_server.database(postgres.apply_schema) as dsn, EngineProcess(dsn, **given) as process:
        process.wait_ready()
        with App(asking, name="shop", at=dsn).in_thread() as shop:
            shop.start(asking, 7, id="a-7")
            shop.start(asking, -1, id="a-0")
            yield Place(f"grpc://127.0.0.1:{process.grpc_port}", dsn)


@pytest.mark.slow(reason="an engine process")
def test_runs_are_listed_shown_and_sent_to_by_url_and_token(place: Place) -> None:
    def waits() -> bool:
        code, reported = place.run("viewer", "list", "--json")
        assert code == 0, reported
        found = {row["id"]: row for row in json.loads(reported)}
        assert found.keys() == {"a-7", "a-0"}
        return found["a-7"]["waitsFor"] is not None and found["a-0"]["status"] == "FAILED"

    wait_until(waits)
    code, reported = place.run("viewer", "show", "a-7")
    assert (code, "waits for" in reported) == (0, True)
    code, reported = place.run("viewer", "show", "a-0")
    assert (code, "n is below zero" in reported) == (0, True)
    code, reported = place.run("viewer", "list", "shop:asking", "--status", "failed")
    assert (code, "a-0" in reported, "a-7" in reported) == (0, True, False)
    for who in (None, "viewer"):
        code, reported = place.run(who, "send", "a-7", "approved", "ann")
        assert (code, "penstock: " in reported) == (1, True), reported
    assert place.run("operator", "send", "a-7", "approved", "ann") == (0, "sent approved to a-7\n")
    wait_until(lambda: "COMPLETED" in place.run("viewer", "show", "a-7")[1])
    records = [json.loads(line) for line in place.run("viewer", "journal", "a-7")[1].splitlines()]
    assert any("approved" in json.dumps(record) for record in records)
    code, reported = place.run("operator", "cancel", "a-7")
    assert (code, "a-7" in reported) == (1, True)


@pytest.mark.slow(reason="an engine process")
def test_a_run_is_saved_by_url_as_from_its_database(place: Place, tmp_path: Path) -> None:
    """Also one whose journal has more than one page."""
    with App(counting, name="count", at=place.dsn).in_thread() as count:
        count.start(counting, RECORDS, id="c-1").result()
    for id, count_of in (("a-0", 1), ("c-1", RECORDS)):
        saved = [tmp_path / f"{id}-{wire}" for wire in ("url", "dsn")]
        code, reported = place.run("viewer", "save", id, str(saved[0]))
        assert code == 0, reported
        assert f"{count_of:,} records" in reported
        assert place._replace(url=place.dsn).run(None, "save", id, str(saved[1]))[0] == 0
        assert saved[0].read_bytes() == saved[1].read_bytes()
    assert assert_replays(counting, tmp_path / "c-1-url") == 1
    assert place.run(None, "save", "a-0", str(tmp_path / "x"))[0] == 1
    code, reported = place.run("viewer", "save", "nobody", str(tmp_path / "x"))
    assert (code, "nobody" in reported, (tmp_path / "x").exists()) == (1, True, False)


@pytest.mark.slow(reason="an engine process")
def test_a_workflow_is_adopted_by_url(place: Place) -> None:
    with App(counting, at=place.dsn).in_thread() as unnamed:
        unnamed.start(counting, 1, id="u-1").result()
    code, reported = place.run("viewer", "adopt", "counting")
    assert (code, "needs the role operator" in reported) == (1, True), reported
    code, reported = place.run("operator", "adopt", "counting", "--json")
    assert (code, json.loads(reported)["jobTypes"]) == (0, ["code:counting@1"]), reported
    code, reported = place.run("operator", "adopt", "nobody")
    assert (code, reported) == (1, "penstock: no App without a name has served a workflow 'nobody' on this database\n")


@pytest.mark.slow(reason="an engine process")
def test_what_only_a_database_tells_is_said_so(place: Place) -> None:
    reported = CliRunner().invoke(command, ["check", "--at", place.url, f"{__name__}:asking"])
    assert reported.exit_code != 0
    assert "needs the database (postgresql://…), not an engine over gRPC" in reported.output
    code, output = Place("grpc://127.0.0.1:1", "").run("admin", "list")
    assert (code, "penstock: " in output) == (1, True)


async def test_first_pages_of_journals_wait_for_memory_once(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each held what its records need, and waited for what the arguments need: with some at once, none went on."""
    monkeypatch.setattr(answers, "WAIT_SECONDS", 20.0)
    driver = make_driver(payload_max_bytes=PAGE_MAX_BYTES)
    run = await runs.begin(driver)
    size = COPIES * (PAGE_MAX_BYTES + 2 * driver.engine.settings.payload_max_bytes)
    memory, found = AnswerMemory(size * 5 // 2), list[str | None]()  # of large answers two fit

    async def read() -> None:
        reservation = memory.open()
        try:
            page = await LocalRuns(driver.engine, "").records(run.instance_id, 0)
            found.append(page.arguments)
        finally:
            reservation.end()

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(read)
    assert (len(found), memory.used_bytes) == (12, 0)


@pytest.mark.parametrize("after", ["zz", "-1", "f" * 16, "1-2"])
async def test_a_position_that_is_none_is_refused_by_its_name(make_driver: MakeDriver, after: str) -> None:
    driver = make_driver()
    run = await runs.begin(driver)
    with pytest.raises(BadRequest, match="after: is not the position"):
        await driver.engine.runs.records(run.instance_id, after)


@pytest.mark.parametrize("name", ["a\0", "x" * 257, "\ud800"])
async def test_a_name_that_no_workflow_has_is_refused(make_driver: MakeDriver, name: str) -> None:
    with pytest.raises(BadRequest, match="workflow: has "):
        await make_driver().engine.origins.adopt(name)


async def test_runs_are_found_behind_ten_thousand_others(make_driver: MakeDriver) -> None:
    driver = make_driver()
    found = [await driver.engine.code.start(CodeWorkflow("order", 1, "shop"), b"{}", id=f"r-{n}") for n in range(3)]
    other = {"id": "other", "name": "other", "steps": [{"id": "end", "name": "end", "type": "END"}]}
    await driver.upload(other)
    with psycopg.connect(driver.dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO instance (id, started_at, definition, vars) SELECT %s + k, now(), "
            "(SELECT key FROM definition WHERE id = 'other'), '{}' FROM generate_series(1, %s) AS k",
            (read_instance(found[-1].id), OTHERS),
        )
    ids = [run.id for run in reversed(found)]
    assert [run.id for run in await driver.engine.code.latest("", None, None, 50)] == ids
    assert [run.id for run in await driver.engine.code.latest("", None, None, 2)] == ids[:2]
    assert [run.id for run in await driver.engine.code.latest("", None, "ACTIVE", 50)] == ids
    assert [run.id for run in await driver.engine.code.latest("shop", "order", None, 50)] == ids
    with psycopg.connect(driver.dsn, autocommit=True) as connection:  # instances without tokens break what is promised
        connection.execute("DELETE FROM instance WHERE definition = (SELECT key FROM definition WHERE id = 'other')")
