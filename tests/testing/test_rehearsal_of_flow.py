"""Queues, schedules and batches in virtual time: what waits is waited for, and nothing is looked at in vain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.client import QueuePolicy, Rate, ScheduleSpec, StartRequest
from penstock.testing import TestEngine
from penstock.testing.definitions import definition, end, linear, step

MORNING = datetime(2030, 1, 7, 6, tzinfo=UTC)
ASKS = definition(step("ask", "USER_TASK", nextStep="end"), end(), definition_id="asks")


async def test_what_a_queue_keeps_back_waits_without_an_end(penstock: TestEngine) -> None:
    """Settling ends, other types go on, and the next job begins at the moment at which its rate lets it."""
    await penstock.deploy(linear(1), linear(1, definition_id="other", job_type="other"))
    work, other = penstock.stub("work"), penstock.stub("other")
    queues = penstock.client
    await queues.put_queue("q", QueuePolicy(["work"], paused=True))
    runs = [await penstock.start("linear", priority=priority) for priority in (7, 7, 0)]
    await penstock.start("other")
    await penstock.settle()
    assert (work.count, other.count) == (0, 1)
    await queues.put_queue("q", QueuePolicy(["work"], False, rate_per_key=Rate(1, "PT1H"), rate=Rate(3, "PT1H", 1)))
    began = penstock.now
    await penstock.advance(hours=2)
    assert [run.status for run in runs] == ["COMPLETED"] * 3
    ends = [run.instance.completed_at for run in (runs[2], runs[0], runs[1])]
    assert ends == [began, began + timedelta(minutes=20), began + timedelta(minutes=40)]
    await queues.put_queue("q", QueuePolicy(["work"], rate_per_key=Rate(4, "PT1S", 2)))
    keyed = [await penstock.start("linear", flow_key="k") for _ in range(4)]
    await penstock.settle()
    assert [run.status for run in keyed] == ["COMPLETED", "COMPLETED", "ACTIVE", "ACTIVE"]
    began = penstock.now
    await keyed[3].finish()
    assert keyed[3].instance.completed_at == began + timedelta(seconds=0.5)


async def test_rates_let_each_of_very_many_keys_begin_in_time(penstock: TestEngine) -> None:
    """One look comes to all that wait: until the next event nobody would look again."""
    await penstock.deploy(linear(1))
    work = penstock.stub("work")
    await penstock.client.put_queue("q", QueuePolicy(["work"], rate_per_key=Rate(1, "PT1H")))
    penstock._connection.execute(  # one more of these keys each hour, the others long after
        "INSERT INTO slot (queue, flow_key, tat) SELECT q.id, 'k' || n, penstock_now() +"
        " CASE WHEN n % 50 = 0 THEN n / 50 ELSE 10000 END * interval '1 h' FROM queue q, generate_series(1, 300) n"
    )
    asked = [StartRequest(definition_id="linear", flow_key=f"k{n}") for n in range(1, 301)]
    made = [result.instance for result in await penstock.client.start_instances(asked)]
    began = penstock.now
    await penstock.advance(hours=6)
    ends = [penstock.run(one.id).instance.completed_at for one in made[49::50] if one is not None]
    assert (work.count, ends) == (6, [began + timedelta(hours=n) for n in range(1, 7)])


@pytest.mark.penstock(now=MORNING)
async def test_a_schedule_that_waits_for_a_run_is_left_alone(penstock: TestEngine) -> None:
    """A month of looks each ten seconds would be too much to do."""
    await penstock.deploy(ASKS)
    spec = ScheduleSpec("asks", cron=["0 7 1 * *"], overlap="BUFFER_ONE")
    schedules = penstock.client
    await schedules.put_schedule("monthly", spec)
    first, second = [await schedules.trigger_schedule("monthly") for _ in range(2)]
    assert (first.at, first.outcome) == (MORNING, "STARTED")
    assert (second.at, second.outcome) == (MORNING + timedelta(microseconds=1), "BUFFERED")
    await penstock.advance(days=60)
    found = await schedules.get_schedule("monthly")
    assert [run.outcome for run in found.runs] == ["SKIPPED", "SKIPPED", "BUFFERED", "STARTED"]
    assert first.instance_id is not None
    await penstock.run(first.instance_id).complete_task("ask")
    await penstock.settle()
    found = await schedules.get_schedule("monthly")
    assert [(run.outcome, run.at) for run in found.runs[:1]] == [("STARTED", second.at)]
    await schedules.put_schedule("monthly", ScheduleSpec("asks", every="PT1H", overlap="CANCEL_OTHER"))
    open_run = penstock.run(str(found.last_instance_id))
    await penstock.advance(hours=1)
    assert open_run.status == "CANCELLED"


async def test_a_batch_whose_instances_take_long_is_left_alone(penstock: TestEngine) -> None:
    await penstock.deploy(ASKS)
    batch = await penstock.client.start_batch([StartRequest(definition_id="asks") for _ in range(2)])
    await penstock.advance(days=30)
    results = [one async for one in penstock.client.iterate_batch_results(batch.id)]
    for result in results:
        assert result.instance is not None
        await penstock.run(result.instance.id).complete_task("ask")
    assert (await penstock.client.get_batch(batch.id)).state == "RUNNING"
    await penstock.settle()
    found = await penstock.client.get_batch(batch.id)
    assert (found.state, found.completed, found.ended_at) == ("DONE", 2, penstock.now)
