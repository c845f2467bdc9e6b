"""Two programs whose workflows have one name, under no App name: neither finishes the other's runs in silence."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock.durable import App, receive, workflow
from penstock.durable.own_engine import open_engine
from penstock.durable.workflow import Workflow
from penstock.engine.runs.origins import of_shared
from penstock.store.rows.origins import SharedType
from tests.durable.programs import own_directory

BOUND_S = 60.0
PROGRAM = """
import sys
from penstock.durable import App, receive, step, workflow

@step
def who() -> str:
    return {name!r}

@workflow
async def order() -> str:
    mine = await who()
    await receive("go", str)
    return mine

if __name__ == "__main__":
    name, action, id = sys.argv[1:]
    with App(order, name=name).in_thread() as app:
        if action == "start":
            run = app.start(order, id=id)
            while not any(record["kind"] == "done" for record in run.history()):
                pass
        else:
            run = app.start(order, id=id)
            run.send("go", "go")
            print(run.result(60))
"""


@pytest.fixture
def directory() -> Generator[Path]:
    yield from own_directory()


def run(directory: Path, *words: str) -> tuple[int, str, str]:
    environment = {"WE_DATA_DIR": str(directory / "data"), "HOME": str(directory), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, *words], cwd=directory, env=environment, text=True, capture_output=True, timeout=BOUND_S,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.strip(), done.stderr.strip()


@pytest.mark.slow(reason="seven programs, each of which starts the embedded PostgreSQL")
def test_two_folders_do_not_share_runs_on_the_embedded_database(directory: Path):
    for name in ("one", "two"):
        (directory / name).mkdir()
        (directory / name / "orders.py").write_text(PROGRAM.format(name=name))
    assert run(directory, "one/orders.py", "", "start", "17")[0] == 0
    code, said, reported = run(directory, "two/orders.py", "", "finish", "17")
    assert (code, said) == (1, "")
    last = reported.splitlines()[-1]
    one, two = (directory / name for name in ("one", "two"))
    assert f"orders.order in {one} serves order@1 here and has open runs" in last
    assert f"this program has orders.order in {two}" in last
    assert 'App(order, name="my-project")' in last
    assert "penstock runs adopt order" in last
    assert "ExceptionGroup" not in reported
    assert run(directory, "two/orders.py", "shop", "finish", "17") == (0, "two", ""), "a named App has runs of its own"
    assert run(directory, "one/orders.py", "", "finish", "17") == (0, "one", "")
    assert run(directory, "two/orders.py", "", "start", "18")[0] == 0, "nothing is open, nobody is connected"
    code, said, reported = run(directory, "-m", "penstock", "runs", "adopt", "order")
    assert (code, said) == (0, "the next program that serves order has its runs"), reported
    assert run(directory, "one/orders.py", "", "finish", "18") == (0, "two", ""), "the step was done by the other"


WHERE = "from penstock.durable import workflow\n@workflow\nasync def order(): ...\n{end}"
SAY = "print(order.origin.name, order.origin.folder)\n"


@pytest.mark.slow(reason="runs six programs")
def test_a_module_has_one_origin_however_it_is_run(tmp_path: Path):
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "worker.py").write_text(WHERE.format(end="if __name__ == '__main__': " + SAY))
    (shop / "__main__.py").write_text(WHERE.format(end=SAY))
    (tmp_path / "test_worker.py").write_text(
        "from shop.worker import order\ndef test_it():\n    open('seen', 'w').write(order.origin.name)\n"
    )

    def origin(*words: str) -> str:
        return subprocess.run([sys.executable, *words], cwd=tmp_path, text=True, capture_output=True, check=True).stdout

    assert origin("-m", "shop.worker") == f"shop.worker.order {shop}\n"
    assert origin("shop/worker.py") == f"worker.order {shop}\n"
    assert origin("-m", "shop") == f"shop.order {shop}\n"
    assert origin("-c", f"from shop.worker import order; {SAY}") == f"shop.worker.order {shop}\n"
    assert origin("-c", WHERE.format(end=SAY)) == f"__main__.order {tmp_path}\n", "as at a prompt"
    origin("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert (tmp_path / "seen").read_text() == "shop.worker.order"


def of_module(module: str) -> Workflow[[], str]:
    async def order() -> str:
        return await receive("go", str)

    order.__module__ = module
    return workflow(order)


async def attention(dsn: str) -> list[tuple[str, str]]:
    async with open_engine(dsn, serves=False, migrate=False) as (engine, _, _):
        view = await engine.overview.read("1h")
    return [(one.text, one.detail) for one in view.attention if one.kind == "two-origins"]


async def test_a_moved_module_goes_on_and_is_reported(at: str, database_dsn: str, caplog: pytest.LogCaptureFixture):
    """On a PostgreSQL of the team a renamed module must not stop a service."""
    old, new = of_module("shop.orders"), of_module("shop.workflows.orders")
    other = of_module("billing.jobs")
    async with App(old, at=at) as app:
        run = await app.start(old, id="17")
        for same in (old, of_module("orders")):  # a second worker, and the script run directly
            async with App(same, at=at):
                pass
    assert await attention(database_dsn) == []
    async with App(other, at=at) as app:
        assert [each.id for each in await app.find(other)] == ["17"], "it serves what is there"
    [(text, detail)] = await attention(database_dsn)
    assert text == "2 programs serve order@1 under no name"
    assert detail.startswith("billing.jobs.order, shop.orders.order. Name their Apps")
    assert detail.endswith("penstock runs adopt order")
    if at == database_dsn:
        reported = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "two programs serve one workflow" in reported[0].getMessage()
        assert "orders.order serves order@1 here and has open runs" in reported[0].getMessage()
    async with open_engine(database_dsn, serves=False, migrate=False) as (engine, _, _):
        assert await engine.origins.adopt("order") == ["code:order@1"]
    assert await attention(database_dsn) == []
    async with App(new, at=at) as app:
        run = await app.get("17", new)
        await run.send("go", "went")
        assert await run.result(BOUND_S) == "went"
    async with App(other, at=at):  # nothing is open: the next one has it, and nobody needs to know
        pass
    assert await attention(database_dsn) == []


async def test_an_app_beside_another_ones_is_told_of_it(database_dsn: str, caplog: pytest.LogCaptureFixture):
    """Also where no run is open yet."""
    async with App(of_module("shop.orders"), at=database_dsn):
        async with App(of_module("billing.jobs"), at=database_dsn):
            pass
        async with App(of_module("named.one"), at=database_dsn, name="named"):
            pass
        assert len(await attention(database_dsn)) == 1
        with trio.fail_after(BOUND_S):
            async with open_engine(database_dsn, serves=False, migrate=False) as (engine, _, _):
                await engine.origins.adopt("order")  # the other one is gone
        assert await attention(database_dsn) == []
    [reported] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "shop.orders.order serves order@1 here and is connected" in reported


def test_one_program_under_two_names_is_none_to_tell_of():
    def shared(*names: str) -> list[Any]:
        from datetime import UTC, datetime

        return of_shared([SharedType("code:order@1", list(names), datetime(2030, 1, 1, tzinfo=UTC))])

    assert shared("worker.order", "shop.worker.order") == []
    assert len(shared("worker.order", "shop.worker.order", "other.order")) == 1
    assert shared("a.order", "b.order")[0].count == 2
