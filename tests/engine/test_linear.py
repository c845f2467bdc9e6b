"""A linear workflow from upload to end."""

from __future__ import annotations

from penstock.testing.definitions import linear
from tests.engine.driver import Driver, variables_of


async def test_a_linear_workflow_runs_to_its_end(driver: Driver) -> None:
    await driver.upload(linear(3))
    instance = await driver.start("linear", {"a": 1})
    assert (instance.status, len(instance.current_step_ids)) == ("ACTIVE", 1)
    types = [step["jobType"] for step in linear(3)["steps"] if "jobType" in step]  # pyright: ignore[reportGeneralTypeIssues] - the steps are a list
    for index, job_type in enumerate(types):
        job = await driver.one(job_type)
        assert job.attempt == 1
        await driver.complete(job, {f"r{index}": index})
    done = await driver.view(instance.id)
    assert done.status == "COMPLETED"
    assert done.current_step_ids == []
    assert variables_of(done) == {"a": 1, "r0": 0, "r1": 1, "r2": 2}
    path = await driver.path(instance.id)
    assert [status for _, status in path] == ["COMPLETED"] * 4
    assert driver.rows("SELECT count(*) FROM token")[0] == (0,)


async def test_the_end_is_in_the_history_without_a_row(driver: Driver) -> None:
    await driver.upload(linear(1))
    instance = await driver.start("linear")
    await driver.complete(await driver.one("work"))
    assert driver.rows("SELECT step, end_step FROM history") == [(0, 1)]
    job, end = await driver.history(instance.id)
    assert (end.step_id, end.step_type, end.status, end.attempt_number) == ("end", "END", "COMPLETED", 1)
    assert end.started_at == end.ended_at == job.ended_at
    assert end.attempts == []
    assert end.id != job.id
    trail = [record.step_id for record in (await driver.engine.instances.audit(instance.id)).items if record.step_id]
    assert trail == [job.step_id, job.step_id, "end"]
