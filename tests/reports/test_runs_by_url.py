"""Issue 39, point 20: `penstock runs` asked databases only, and lost runs behind 10,000 other instances."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any, NamedTuple

import psycopg
import pytest
from typer.testing import CliRunner

from penstock.cli.app import app as command
from penstock.durable import App, receive, workflow
from penstock.engine.requests.ids import read_instance
from penstock.engine.runs.code import CodeWorkflow
from tests import postgres
from tests.access.people import TOKENS, lines
from tests.engine.conftest import MakeDriver, make_driver
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

__all__ = ["make_driver"]
OTHERS = 10_500


@workflow
async def asking(n: int) -> str:
    if n < 0:
        raise ValueError("n is below zero")
    return f"{n} {await receive('approved', str)}"


class Place(NamedTuple):
    """An engine that asks for tokens, with a program that serves its runs."""

    url: str

    def run(self, who: str | None, *words: str) -> tuple[int, str]:
        environment = {"PENSTOCK_TOKEN": TOKENS[who].text if who else "", "PENSTOCK_AT": self.url}
        told = CliRunner().invoke(command, ["runs", *words], env=environment)
        return told.exit_code, told.output


@pytest.fixture(scope="module")
def place(postgres_server: postgres.PostgresServer) -> Generator[Place]:
    given: dict[str, Any] = {"authentication": True, "api_tokens": ",".join(lines())}
    with postgres_server.database(postgres.apply_schema) as dsn, EngineProcess(dsn, **given) as process:
        process.wait_ready()
        with App(asking, name="shop", at=dsn).in_thread() as shop:
            shop.start(asking, 7, id="a-7")
            shop.start(asking, -1, id="a-0")
            yield Place(f"grpc://127.0.0.1:{process.grpc_port}")


@pytest.mark.slow(reason="an engine process")
def test_runs_are_listed_shown_and_sent_to_by_url_and_token(place: Place) -> None:
    def waits() -> bool:
        code, told = place.run("viewer", "list", "--json")
        assert code == 0, told
        found = {row["id"]: row for row in json.loads(told)}
        assert found.keys() == {"a-7", "a-0"}
        return found["a-7"]["waitsFor"] is not None and found["a-0"]["status"] == "FAILED"

    wait_until(waits)
    code, told = place.run("viewer", "show", "a-7")
    assert (code, "waits for" in told) == (0, True)
    code, told = place.run("viewer", "show", "a-0")
    assert (code, "n is below zero" in told) == (0, True)
    code, told = place.run("viewer", "list", "shop:asking", "--status", "failed")
    assert (code, "a-0" in told, "a-7" in told) == (0, True, False)
    for who in (None, "viewer"):
        code, told = place.run(who, "send", "a-7", "approved", "ann")
        assert (code, "penstock: " in told) == (1, True), told
    assert place.run("operator", "send", "a-7", "approved", "ann") == (0, "sent approved to a-7\n")
    wait_until(lambda: "COMPLETED" in place.run("viewer", "show", "a-7")[1])
    records = [json.loads(line) for line in place.run("viewer", "journal", "a-7")[1].splitlines()]
    assert any("approved" in json.dumps(record) for record in records)
    code, told = place.run("operator", "cancel", "a-7")
    assert (code, "a-7" in told) == (1, True)


@pytest.mark.slow(reason="an engine process")
def test_what_only_a_database_tells_is_said_so(place: Place) -> None:
    for words in (("adopt", "asking"), ("save", "a-7", "/dev/null")):
        assert place.run("admin", *words) == (
            1, "penstock: at: this command needs the database (postgresql://…), not an engine over gRPC\n",
        )  # fmt: skip
    code, told = Place("grpc://127.0.0.1:1").run("admin", "list")
    assert (code, "penstock: " in told) == (1, True)


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
