"""The ported samples do what those of Temporal and DBOS do, and are as long as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import trio

from penstock.durable import App, UpdateFailed, UpdateRefused
from penstock.testing import Ask, Message, run_workflow
from penstock.wire.shown import parts
from tests.durable.ported import checkout, cluster, fair, greeting
from tests.house.sources import TOP


def test_the_greeting_is_in_the_language_that_was_set_last():
    messages = [
        Ask("set_language", ["Chinese"], after=1, id="a"),
        Ask("set_language", ["French"], after=2, id="b"),
        Ask("set_language_by_service", ["French"], after=3, id="c"),
        Ask("set_language_by_service", ["Klingon"], after=4, id="d"),
        Message("approve", "ann", after=5),
    ]
    run = run_workflow(greeting, messages=messages)
    assert run.result() == "Bonjour, monde"
    assert (run.answers["a"], run.answers["c"]) == ("English", "Chinese")
    assert isinstance(run.answers["b"], UpdateRefused)
    assert isinstance(run.answers["d"], UpdateFailed)
    assert msgspec.json.decode(run.view or "")["languages"] == ["Chinese", "English", "French"]


def test_the_cluster_assigns_nodes_and_finds_bad_ones():
    messages = [
        Ask("assign", ["a", 2], id="before"),
        Message("start", True, after=1),
        Ask("assign", {"job": "b", "count": 3}, after=2, id="b"),
        Ask("assign", ["b", 3], after=3, id="again"),
        Ask("assign", ["c", 99], after=4, id="many"),
        Ask("delete", ["a"], after=5, id="delete"),
        Message("shutdown", True, after=700),
    ]
    run = run_workflow(cluster, messages=messages)
    assert run.result() == {"assigned": 2, "bad": 1}
    assert run.answers["before"] == ["0", "1"]
    assert run.answers["b"] == run.answers["again"] == ["2", "3", "4"]
    assert "22 are free" not in run.answers["many"].message
    assert "20 are free" in run.answers["many"].message


@pytest.mark.parametrize("status", ["paid", "declined"])
def test_what_a_checkout_shows_by_key(status: str):
    run = run_workflow(checkout, messages=[Message("payment_status", status, after=5)], seed="c-1")
    run.result()
    assert parts(run.view)[1] == {"payment_id": '"c-1"', "order_id": '"17"'}
    assert [each.workflow for each in run.started] == (["dispatch"] if status == "paid" else [])


@pytest.mark.slow(reason="an App with a queue")
async def test_the_queue_lets_one_in_for_each_tenant(
    database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    policies = tmp_path / "queues.json"
    policies.write_text('{"fair": {"jobTypes": [], "concurrency": 5, "concurrencyPerKey": 1}}')
    monkeypatch.setenv("WE_QUEUES_FILE", str(policies))
    with trio.fail_after(60):
        async with App(fair, at=database_dsn) as app:
            runs = [await app.start(fair, flow_key=f"tenant-{number % 3}") for number in range(9)]
            assert [await run.result() for run in runs] == ["done"] * 9


def test_the_page_has_the_lines_of_the_ports():
    text = (TOP / "tests" / "durable" / "ported.py").read_text()
    found = re.findall(r"^# port: ([a-z ]+)\n(.*?)(?=^# port: )", text, re.DOTALL | re.MULTILINE)
    counts = {name: len([line for line in body.splitlines() if line.strip()]) for name, body in found}
    page = (TOP / "docs" / "durable-coming-from.md").read_text()
    shown = {name: int(lines) for name, lines in re.findall(r"^\| ([a-z ]+) \|.*\| (\d+) \|$", page, re.MULTILINE)}
    assert shown == counts
