"""What has to be so before an engine serves in Kafka mode, and what an upload may not bring."""

from __future__ import annotations

import pytest

from penstock.core.graph.definition import InvalidDefinition
from penstock.core.rules.topic import topic_problem
from penstock.runtime.dispatch import KafkaDispatcher, TopicsMissing
from penstock.testing.definitions import definition, end, service
from tests.dispatch.conftest import MakeKafka
from tests.dispatch.test_relay import LINE, done
from tests.engine.conftest import MakeDriver
from tests.shapes import task, user

BAD = definition(
    service("a", "b", job_type="has space"), service("b", "end", job_type="ümlaut"), end(), definition_id="bad"
)


@pytest.mark.parametrize("job_type", ["a", "LOS_loan.check-2", "x" * 235])
def test_a_job_type_names_a_topic(job_type: str) -> None:
    assert topic_problem(job_type) is None


@pytest.mark.parametrize("job_type", ["", "a b", "a/b", "LOS::loan", "é", "a\n", "x" * 236])
def test_a_job_type_names_no_topic(job_type: str) -> None:
    assert topic_problem(job_type) is not None


async def test_an_upload_is_refused_with_all_its_unnameable_types(
    make_kafka: MakeKafka,
) -> None:
    kafka = make_kafka()
    before = kafka.rows("SELECT count(*) FROM definition")
    with pytest.raises(InvalidDefinition) as refused:
        await kafka.upload(BAD)
    assert [problem.path for problem in refused.value.problems] == ["steps[0].jobType", "steps[1].jobType"]
    assert "can't be the name of a Kafka topic" in refused.value.reason
    assert kafka.rows("SELECT count(*) FROM definition") == before


async def test_the_labels_of_user_tasks_need_no_topic(make_kafka: MakeKafka) -> None:
    await make_kafka().upload(definition(user("u", jobType="any label"), end()))


async def test_in_polling_mode_any_job_type_will_do(make_driver: MakeDriver) -> None:
    await make_driver().upload(BAD)


async def test_topics_of_latest_versions_and_open_jobs_are_needed(make_kafka: MakeKafka) -> None:
    kafka = make_kafka()
    await kafka.run(definition(task("old"), end(), definition_id="x"))
    await kafka.upload(definition(task("new", "u"), user("u", jobType="label"), end(), definition_id="x"))
    await kafka.run(LINE)
    needed = [f"workflow.jobs.{name}" for name in ("a", "b", "new")]
    assert await KafkaDispatcher(kafka.engine).topics_needed() == [*needed, "workflow.jobs.old"]
    await kafka.drain()
    old = next(event for event in kafka.producer.log if event.job_type == "old")
    await kafka.engine.jobs.complete(done(old))
    assert await KafkaDispatcher(kafka.engine).topics_needed() == needed


async def test_a_start_is_refused_while_unnameable_job_types_are_used(
    make_driver: MakeDriver, make_kafka: MakeKafka
) -> None:
    polling = make_driver()
    await polling.run(BAD)
    with pytest.raises(TopicsMissing, match="'has space', 'ümlaut'"):
        await KafkaDispatcher(make_kafka().engine).topics_needed()
    await polling.upload(definition(task("good"), end(), definition_id="bad"))
    with pytest.raises(TopicsMissing, match="in use: 'has space'"):  # its job is open
        await KafkaDispatcher(make_kafka().engine).topics_needed()
    await polling.complete(await polling.one("has space"))
    await polling.complete(await polling.one("ümlaut"))
    assert await KafkaDispatcher(make_kafka().engine).topics_needed() == ["workflow.jobs.good"]
