"""Issue 39, points 14, 19 and 20: what operators are told. Times had no zone, items no index, progress was not shown,
and single failures stood above an engine that is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from penstock.cli import _utc_first
from penstock.cli.instances import _rows
from penstock.cli.options import print_utc, shown_step, shown_time
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.status import attention
from penstock.engine.status.attention import FailuresOfDefinition
from penstock.errors import BadRequest, NotFound
from penstock.store.rows.activity import KnownEngine, WorkerNote, read_workers, write_workers
from penstock.testing.definitions import linear
from penstock.wire.attention import AcknowledgeBody
from penstock.wire.model import Attempt, Instance, ItemCounts, StepExecution
from tests.engine.conftest import MakeDriver, make_driver

__all__ = ["make_driver"]
AT = datetime(2026, 7, 1, 22, 30, 5, 999_999, tzinfo=UTC)


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/St_Johns"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()
    print_utc(False)
    assert os.environ.get("TZ") != "America/St_Johns"


def test_a_time_is_the_readers_and_has_its_zone(zone: str) -> None:
    own = {"UTC": "2026-07-01 22:30:05Z", "Europe/Berlin": "2026-07-02 00:30:05+02:00"}
    assert shown_time(AT) == own.get(zone, "2026-07-01 20:00:05-02:30")
    assert shown_time(None) == ""
    assert shown_time(AT, ZoneInfo("Asia/Tokyo")) == "2026-07-02 07:30:05+09:00"
    assert shown_time(datetime.max.replace(tzinfo=UTC)).startswith(("9999-12-31", "10000"))
    print_utc(True)
    assert shown_time(AT) == "2026-07-01 22:30:05Z"
    assert shown_time(AT, ZoneInfo("Asia/Tokyo")) == "2026-07-02 07:30:05+09:00"


def test_utc_is_an_option_of_every_command_wherever_it_stands() -> None:
    assert _utc_first(["instance", "list", "--utc", "--limit", "3"]) == ["--utc", "instance", "list", "--limit", "3"]
    assert _utc_first(["instance", "list"]) == ["instance", "list"]
    assert _utc_first(["--utc", "x", "--utc"]) == ["--utc", "x"]
    assert _utc_first(["x", "--", "--utc"]) == ["x", "--", "--utc"]


def test_rows_of_an_instance_have_items_progress_and_no_empty_names() -> None:
    def entry(id: str, step: str, status: str = "RUNNING", **more: Any) -> StepExecution:
        return StepExecution(id=id, step_id=step, status=status, **more)

    history = [
        entry("1", "pay", "FAILED", failure_reason="no card"),
        entry("2", "pay", attempts=[Attempt(attempt=1, reason="busy")]),
        entry("3", "send", items=ItemCounts(total=9, completed=4, failed=1, running=2)),
        entry("4", "send", item=7),
        entry("5", "load"),
        entry("6", "/compensation"),
        entry("7", "pay/compensation", "COMPLETED"),
    ]
    instance = Instance(id="i", progress={"load": {"rows": 7}, "gone": 1})
    rows = [(row[0], row[-1]) for row in _rows(instance, history)]
    assert rows == [
        ("pay", "no card"),
        ("pay", "busy"),
        ("send", "4 of 9 done, 2 running, 1 failed"),
        ("send[7]", ""),
        ("load", 'progress {"rows": 7}'),
        ("compensation", ""),
        ("pay/compensation", "")]  # fmt: skip
    assert shown_step("pay") == "pay"


def test_what_concerns_all_work_stands_above_single_failures() -> None:
    gone = KnownEngine(7, "polling", "host, 1", 21, -300.0, None)
    failures = attention.of_failures([FailuresOfDefinition("loan", 1, 60, "no paper", AT)], exact=True)
    found = [*failures, *attention.of_engines([gone], AT), *attention.of_this_engine(["kafka"], 0.0)]
    assert [one.kind for one in attention.sorted_by_reach(found)] == ["degraded", "engine-gone", "failures"]
    assert len({one.key for one in found}) == 3
    same = attention.of_failures([FailuresOfDefinition("loan", 1, 61, "no paper", AT)], exact=True)
    assert same[0].key == failures[0].key


async def test_a_row_is_acknowledged_until_more_have_failed(make_driver: MakeDriver) -> None:
    driver = make_driver(attention_acknowledged_hours=2)
    await driver.upload(linear(1, definition_id="shop", job_type="charge"))

    async def fail() -> None:
        await driver.start("shop")
        await driver.fail(await driver.one("charge"), "no paper", retryable=False)

    overview = driver.engine.overview
    await fail()
    (row,) = (await overview.attention()).items
    await overview.acknowledge(row.key, AcknowledgeBody(row.count, "ordered"))
    (marked,) = (await overview.attention()).items
    assert marked.acknowledged is not None
    assert (marked.acknowledged.note, marked.key) == ("ordered", row.key)
    assert (marked.acknowledged.until - marked.acknowledged.at).total_seconds() == 7_200
    await fail()
    overview.forget()
    (more,) = (await overview.attention()).items
    assert (more.count, more.acknowledged) == (2, None)
    await overview.acknowledge(row.key, AcknowledgeBody(2))
    assert (await overview.attention()).items[0].acknowledged is not None
    driver.clock.advance(7_201)
    overview.forget()
    assert (await overview.attention()).items[0].acknowledged is None
    await overview.acknowledge(row.key, AcknowledgeBody(2))
    await overview.withdraw(row.key)
    assert (await overview.attention()).items[0].acknowledged is None
    with pytest.raises(NotFound):
        await overview.withdraw(row.key)
    for key, body in (("", AcknowledgeBody()), ("x" * 601, AcknowledgeBody()), ("x", AcknowledgeBody(-1))):
        with pytest.raises(BadRequest):
            await overview.acknowledge(key, body)
    kinds = driver.rows("SELECT kind FROM audit WHERE kind LIKE 'ATTENTION%%' ORDER BY pos")
    assert [kind for (kind,) in kinds] == ["ATTENTION_ACKNOWLEDGED"] * 3 + ["ATTENTION_WITHDRAWN"]
    assert (await driver.engine.instances.count(InstanceFilter(status="FAILED"))).count == 2


async def test_a_worker_that_was_started_anew_is_listed_once(make_driver: MakeDriver) -> None:
    """By the names that our worker makes of host, process and chance; those of others stay as they are."""
    driver = make_driver()

    def note(worker: str, ago_s: float, *types: str) -> WorkerNote:
        return WorkerNote(worker, list(types or ("pay",)), ago_s, 0, 0, 0)

    notes = [
        note("web-1-12-0123abcd", 600), note("web-1-99-4567cdef", 5, "pay", "ship"),  # started anew
        note("web-1-13-aaaaaaaa", 60),  # it may be there still
        note("web-1-14-bbbbbbbb", 600, "mail"),  # nobody took its type
        note("web-12-7-cccccccc", 600), note("web-1", 600), note("mine", 600), note("mine-2", 5),
        note("shop-7d9f8b6c5d-x2x9z-1-0123abcd", 600), note("shop-6c4b9f7d8f-zbq7k-1-4567cdef", 5),  # of a new pod
        note("shop-0-1-0123abcd", 600), note("shop-1-1-4567cdef", 5),  # of a StatefulSet: two
    ]  # fmt: skip
    async with driver.engine.database.connection() as connection:
        await write_workers(connection, 1, notes)
        await write_workers(connection, 2, [note("web-1-12-0123abcd", 700)])
        for job_type in (None, "pay"):
            seen = [each.worker for each in await read_workers(connection, "", 100, job_type)]
            wanted = ["mine", "mine-2", "shop-0-1-0123abcd", "shop-1-1-4567cdef", "shop-6c4b9f7d8f-zbq7k-1-4567cdef",
                      "web-1", "web-1-13-aaaaaaaa", "web-1-14-bbbbbbbb", "web-1-99-4567cdef",
                      "web-12-7-cccccccc"]  # fmt: skip
            assert seen == [name for name in wanted if job_type is None or name != "web-1-14-bbbbbbbb"]
