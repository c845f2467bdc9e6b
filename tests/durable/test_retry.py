"""A failed run is retried by its user: what was done before stays done."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app as commands
from penstock.client import Conflict
from penstock.durable import App, RunFailed, receive, run_info, step, workflow

BOUND_S = 60.0
calls: list[str] = []
broken = True


@step
async def reserve(sku: str) -> str:
    calls.append(f"reserve {sku}")
    return sku.upper()


@step(retries=1, first="1ms")
async def charge(sku: str) -> str:
    calls.append(f"charge {sku}")
    if broken:
        raise OSError("no route to the bank")
    return f"paid {sku}"


@workflow
async def order(sku: str) -> str:
    began = run_info().started_at
    stock = await reserve(sku)
    word = await receive("word", str)
    paid = await charge(stock)
    return f"{paid} {word} {began == run_info().started_at}"


@pytest.fixture(autouse=True)
def begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    calls.clear()
    monkeypatch.setattr("tests.durable.test_retry.broken", True)


async def test_what_was_done_stays_done(at: str, monkeypatch: pytest.MonkeyPatch):
    async with App(order, at=at) as app:
        run = await app.start(order, "pen", id="o-1")
        with pytest.raises(Conflict, match="run o-1: only a FAILED"):
            await run.retry()
        await run.send("word", "thanks")
        with pytest.raises(RunFailed, match="no route to the bank"):
            await run.result(BOUND_S)
        assert calls == ["reserve pen", "charge PEN", "charge PEN"]
        await run.retry()
        with pytest.raises(RunFailed, match="no route to the bank"):
            await run.result(BOUND_S)
        assert calls[3:] == ["charge PEN", "charge PEN"], "with all of its retries"
        monkeypatch.setattr("tests.durable.test_retry.broken", False)
        await run.retry(note="the bank is back")
        assert await run.result(BOUND_S) == "paid PEN thanks True"
        assert calls[5:] == ["charge PEN"]


def test_the_command_retries_from_a_path(database_dsn: str, monkeypatch: pytest.MonkeyPatch):
    def runs(*args: str) -> tuple[int, str]:
        done = CliRunner().invoke(commands, ["runs", *args, "--at", database_dsn])
        return done.exit_code, done.output

    with App(order, at=database_dsn).in_thread() as app:
        run = app.start(order, "ink", id="o-2")
        run.send("word", "thanks")
        with pytest.raises(RunFailed):
            run.result(BOUND_S)
        assert runs("retry", "o-2", "--from", "/7") == (
            1, "penstock: run o-2: fromStepId: nothing with the path '/7' is in the run's journal\n"
        )  # fmt: skip
        monkeypatch.setattr("tests.durable.test_retry.broken", False)
        assert runs("retry", "o-2", "--from", "/0", "--note", "stock was wrong", "--json") == (
            0, '{"id":"o-2","retried":true}\n'
        )  # fmt: skip
        assert run.result(BOUND_S) == "paid INK thanks True"
        assert calls == ["reserve ink", "charge INK", "charge INK", "reserve ink", "charge INK"]
