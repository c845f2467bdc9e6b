"""`@workflow(schedule=…, queue=Queue(…))`: what it takes, and that an App puts it."""

from __future__ import annotations

import json
from datetime import date

import psycopg
import pytest

from penstock.durable import App, Queue, Rate, ScheduleSpec, workflow
from tests.waiting import wait_until

CRAWL = Queue("crawl", concurrency=10, rate=Rate(5, "PT1M"))


@workflow(schedule="0 8 * * mon", queue=CRAWL)
async def crawl(depth: int = 1) -> int:
    return depth


@workflow(queue="plain")
async def plain() -> None: ...


def test_a_workflow_has_its_schedule_and_its_queue():
    assert crawl.schedule == ScheduleSpec(cron=["0 8 * * mon"])
    assert crawl.queue == "crawl"
    assert crawl.queue_policy is not None
    assert (crawl.queue_policy.concurrency, crawl.queue_policy.rate) == (10, Rate(5, "PT1M"))
    assert (plain.queue, plain.queue_policy, plain.schedule) == ("plain", None, None)


def test_wrong_options_are_refused_where_they_stand():
    async def body() -> None: ...

    with pytest.raises(TypeError, match="schedule"):
        workflow(schedule=5)(body)  # type: ignore[call-overload]  # what it is about
    with pytest.raises(ValueError, match="definition_id is 'other': a schedule in code starts its own workflow"):
        workflow(schedule=ScheduleSpec("other", cron=["@daily"]))(body)
    with pytest.raises(TypeError, match=r"schedule: variables: body does not take them: got an unexpected .* 'depth'"):
        workflow(schedule=ScheduleSpec(cron=["@daily"], variables={"depth": 3}))(body)
    with pytest.raises(TypeError, match="schedule: variables"):
        workflow(schedule=ScheduleSpec(cron=["@daily"], variables=[3]))(body)
    with pytest.raises(ValueError, match="queue: concurrency"):
        workflow(queue=Queue("q", concurrency=0))(body)
    with pytest.raises(TypeError, match="queue: rate"):
        workflow(queue=Queue("q", rate=5))(body)  # type: ignore[arg-type]  # what it is about


def test_a_schedule_gives_arguments_by_parameter_name():
    @workflow(schedule=ScheduleSpec(cron=["@daily"], variables={"day": date(2026, 5, 4)}))
    async def reports(schedule: dict[str, str], day: date, depth: int = 1) -> None: ...

    assert json.loads(reports.schedule_text())["variables"] == {"day": "2026-05-04"}

    @workflow(schedule=ScheduleSpec(cron=["@daily"], variables={"day": "someday"}))
    async def wrong(day: date) -> None: ...

    with pytest.raises(Exception, match=r"wrong .* these arguments.*day"):
        wrong.schedule_text()


def test_two_workflows_of_an_app_share_the_limits_of_a_queue():
    @workflow(queue=Queue("crawl", concurrency=11))
    async def other() -> None: ...

    @workflow(queue=CRAWL)
    async def same() -> None: ...

    App(crawl, same)
    with pytest.raises(ValueError, match="queue 'crawl' has other limits in workflow 'crawl' than in 'other'"):
        App(crawl, other)


@pytest.mark.slow(reason="an App and an engine")
async def test_an_app_puts_what_its_workflows_have(at: str, database_dsn: str):
    async with App(crawl, plain, name="shop", at=at) as app:
        run = await app.start(crawl, 3)
        assert await run.result() == 3
    with psycopg.connect(database_dsn) as connection:
        schedules = connection.execute("SELECT name, spec -> 'cron', definition_id FROM schedule").fetchall()
        queues = connection.execute("SELECT name, policy -> 'concurrency' FROM queue ORDER BY name").fetchall()
        declared = connection.execute("SELECT kind, name, workflow FROM declared ORDER BY kind").fetchall()
    assert schedules == [("shop:crawl", ["0 8 * * mon"], "shop:crawl")]
    assert queues == [("crawl", 10), ("plain", None)]
    assert declared == [("queue", "crawl", "shop:crawl"), ("schedule", "shop:crawl", "shop:crawl")]


@workflow(schedule=ScheduleSpec(every="PT1S", variables={"region": "eu"}))
async def remind(region: str, days: int = 7) -> list[str | int]:
    return [region, days]


@pytest.mark.slow(reason="an App and an engine")
async def test_a_run_of_a_schedule_in_code_gets_its_arguments(at: str):
    async with App(remind, at=at) as app:

        async def found() -> bool:
            return bool(await app.find(remind, status="COMPLETED"))

        await wait_until(found)
        [run, *_] = await app.find(remind)
        assert await run.result() == ["eu", 7]
