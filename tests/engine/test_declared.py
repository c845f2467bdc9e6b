"""Schedules and queues that code has: put as a program connects, changed by whoever may, and put again on demand."""

from __future__ import annotations

import msgspec
import psycopg
import pytest

from penstock.engine.runs.code import CodeWorkflow
from penstock.engine.schedules.declared import InCode
from penstock.errors import BadRequest, Conflict, NotFound
from penstock.settings.secret import Secret
from penstock.store.db.vault import KeyMissing
from penstock.testing.definitions import linear
from penstock.wire.declared import Declaration
from penstock.wire.queue import QueuePolicy, Rate
from penstock.wire.schedule import ScheduleSpec
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.test_encryption import KEYS

NIGHTLY = ScheduleSpec(cron=["0 2 * * *"])
WEEKLY = ScheduleSpec(cron=["0 8 * * mon"], time_zone="Europe/Berlin")
LIMITS = QueuePolicy([], concurrency=10, rate=Rate(5, "PT1M"))


async def connect(
    driver: Driver,
    *,
    version: int = 1,
    schedule: ScheduleSpec | None = None,
    policy: QueuePolicy | None = None,
    name: str = "report",
) -> None:
    """A program connects that serves a workflow."""
    workflow = CodeWorkflow(name, version, "shop")
    await driver.engine.code.register(workflow, anew=True)
    if policy is not None:
        await driver.engine.queues.join("crawl", workflow.job_type)
    texts = [b"" if each is None else msgspec.json.encode(each) for each in (schedule, policy)]
    found = InCode(texts[0], "" if policy is None else "crawl", texts[1])
    await driver.engine.declarations.register(workflow, found)


async def declared(driver: Driver) -> dict[str, Declaration]:
    return {each.kind: each for each in (await driver.engine.declarations.list(None, None)).items}


async def states(driver: Driver) -> dict[str, str]:
    return {kind: each.state for kind, each in (await declared(driver)).items()}


async def test_what_code_has_is_put_and_shown(driver: Driver):
    await connect(driver, schedule=NIGHTLY, policy=LIMITS)
    schedule = await driver.engine.schedules.get("shop:report")
    assert (schedule.definition_id, schedule.cron, schedule.hint) == ("shop:report", ["0 2 * * *"], None)
    policy = (await driver.engine.queues.get("crawl")).policy
    assert (policy.concurrency, policy.rate) == (10, Rate(5, "PT1M", 5))
    assert policy.job_types == ["code:shop:report@1"]
    found = await declared(driver)
    assert [(each.id, each.state, each.workflow, each.version) for each in found.values()] == [
        ("crawl", "AS_IN_CODE", "shop:report", 1),
        ("shop:report", "AS_IN_CODE", "shop:report", 1),
    ]
    assert found["schedule"].body is not None
    assert found["schedule"].body["cron"] == ["0 2 * * *"]
    before = driver.rows("SELECT revision FROM queue"), driver.rows("SELECT fire_at FROM schedule")
    await connect(driver, schedule=NIGHTLY, policy=LIMITS)
    assert await states(driver) == {"queue": "AS_IN_CODE", "schedule": "AS_IN_CODE"}
    assert (driver.rows("SELECT revision FROM queue"), driver.rows("SELECT fire_at FROM schedule")) == before


async def test_a_program_that_died_while_it_connected_is_no_operator(driver: Driver):
    await connect(driver, schedule=NIGHTLY, policy=LIMITS)
    driver.rows("UPDATE declared SET applied = NULL RETURNING 1")  # it had put them, and died
    await connect(driver, version=2, schedule=WEEKLY, policy=msgspec.structs.replace(LIMITS, concurrency=11))
    assert (await driver.engine.schedules.get("shop:report")).cron == ["0 8 * * mon"]
    assert (await driver.engine.queues.get("crawl")).policy.concurrency == 11


async def test_the_highest_version_of_a_workflow_holds(driver: Driver):
    await connect(driver, version=1, schedule=NIGHTLY)
    await connect(driver, version=2, schedule=WEEKLY)
    await connect(driver, version=1, schedule=NIGHTLY)  # in a rolling deploy
    schedule = await driver.engine.schedules.get("shop:report")
    assert (schedule.cron, schedule.time_zone) == (["0 8 * * mon"], "Europe/Berlin")
    assert (await declared(driver))["schedule"].version == 2
    await connect(driver, version=1)
    assert await states(driver) == {"schedule": "AS_IN_CODE"}


async def test_an_operators_change_stays_until_somebody_applies_the_codes(driver: Driver):
    await connect(driver, schedule=NIGHTLY, policy=LIMITS)
    theirs = msgspec.structs.replace(NIGHTLY, definition_id="shop:report", cron=["0 5 * * *"])
    await driver.engine.schedules.put("shop:report", theirs)
    await driver.engine.queues.put("crawl", QueuePolicy([], concurrency=3))
    await connect(driver, version=2, schedule=WEEKLY, policy=LIMITS)
    assert (await driver.engine.schedules.get("shop:report")).cron == ["0 5 * * *"]
    assert (await driver.engine.queues.get("crawl")).policy.concurrency == 3
    assert await states(driver) == {"queue": "CHANGED", "schedule": "CHANGED"}
    for kind, id in (("schedule", "shop:report"), ("queue", "crawl")):
        assert (await driver.engine.declarations.apply(kind, id)).state == "AS_IN_CODE"
    assert (await driver.engine.schedules.get("shop:report")).cron == ["0 8 * * mon"]
    assert (await driver.engine.queues.get("crawl")).policy.concurrency == 10
    await connect(driver, version=3, schedule=NIGHTLY)
    assert (await driver.engine.schedules.get("shop:report")).cron == ["0 2 * * *"], "code may change it again"


async def test_a_pause_is_no_change_and_stays(driver: Driver):
    await connect(driver, schedule=NIGHTLY, policy=LIMITS)
    await driver.engine.schedules.pause("shop:report", "holidays")
    await driver.engine.queues.pause("crawl", paused=True)
    await connect(driver, version=2, schedule=WEEKLY, policy=msgspec.structs.replace(LIMITS, concurrency=11))
    schedule, queue = await driver.engine.schedules.get("shop:report"), await driver.engine.queues.get("crawl")
    assert (schedule.paused, schedule.cron) == (True, ["0 8 * * mon"])
    assert (queue.policy.paused, queue.policy.concurrency) == (True, 11)
    assert await states(driver) == {"queue": "AS_IN_CODE", "schedule": "AS_IN_CODE"}


async def test_what_somebody_made_before_or_deleted_is_left_alone(driver: Driver):
    await driver.engine.queues.put("crawl", QueuePolicy(["old"], concurrency=1))
    await connect(driver, schedule=NIGHTLY, policy=LIMITS)
    assert (await driver.engine.queues.get("crawl")).policy.concurrency == 1
    await driver.engine.schedules.delete("shop:report")
    await connect(driver, version=2, schedule=WEEKLY, policy=LIMITS)
    assert await states(driver) == {"queue": "CHANGED", "schedule": "DELETED"}
    with pytest.raises(NotFound):
        await driver.engine.schedules.get("shop:report")
    await driver.engine.declarations.apply("schedule", "shop:report")
    await driver.engine.declarations.apply("queue", "crawl")
    assert (await driver.engine.schedules.get("shop:report")).cron == ["0 8 * * mon"]
    policy = (await driver.engine.queues.get("crawl")).policy
    assert (policy.concurrency, policy.job_types) == (10, ["code:shop:report@1", "code:shop:report@2", "old"])


async def test_what_code_has_no_more_is_listed_and_kept(driver: Driver):
    await connect(driver, schedule=NIGHTLY, policy=LIMITS)
    await connect(driver, version=2)
    assert await states(driver) == {"queue": "NOT_IN_CODE", "schedule": "NOT_IN_CODE"}
    assert (await driver.engine.schedules.get("shop:report")).cron == ["0 2 * * *"]
    assert (await driver.engine.queues.get("crawl")).policy.concurrency == 10
    with pytest.raises(Conflict, match="no code has the queue 'crawl' any more"):
        await driver.engine.declarations.apply("queue", "crawl")
    await connect(driver, version=1, schedule=NIGHTLY)  # older code
    assert (await states(driver))["schedule"] == "NOT_IN_CODE"
    await connect(driver, version=1, policy=LIMITS, name="crawler")  # another workflow has it now
    assert await states(driver) == {"queue": "AS_IN_CODE", "schedule": "NOT_IN_CODE"}


async def test_bad_declarations_are_refused_by_field(driver: Driver):
    await driver.upload(linear(1, definition_id="report"))
    with pytest.raises(BadRequest, match=r"cron\[0\]: .61"):
        await connect(driver, schedule=ScheduleSpec(cron=["61 * * * *"]))
    with pytest.raises(BadRequest, match="concurrency: must be 1 to 1000000"):
        await connect(driver, policy=QueuePolicy([], concurrency=0))
    with pytest.raises(BadRequest, match="schedule: "):
        workflow = CodeWorkflow("report", 1, "shop")
        await driver.engine.declarations.register(workflow, InCode(b"{"))
    with pytest.raises(BadRequest, match="kind: must be schedule or queue"):
        await driver.engine.declarations.apply("timer", "x")
    with pytest.raises(NotFound, match="no code has ever had a queue 'x'"):
        await driver.engine.declarations.apply("queue", "x")
    assert await states(driver) == {}


async def test_the_list_goes_on_behind_a_slice(driver: Driver):
    for number in range(3):
        await connect(driver, schedule=NIGHTLY, name=f"report-{number}")
    first = await driver.engine.declarations.list(None, 2)
    second = await driver.engine.declarations.list(first.next, 2)
    names = [each.id for each in (*first.items, *second.items)]
    assert (names, second.next) == (["shop:report-0", "shop:report-1", "shop:report-2"], None)


async def test_a_schedule_in_code_gives_its_runs_arguments(driver: Driver):
    def given(**arguments: object) -> ScheduleSpec:
        return msgspec.structs.replace(NIGHTLY, variables=msgspec.Raw(msgspec.json.encode(arguments)))

    await connect(driver, schedule=given(region="eu"))
    assert await arguments(driver) == {"region": "eu"}
    assert await states(driver) == {"schedule": "AS_IN_CODE"}
    run = await driver.engine.schedules.trigger("shop:report", None)
    assert run.instance_id is not None
    started = msgspec.json.decode(bytes((await driver.engine.instances.get(run.instance_id)).variables))
    assert started["region"] == "eu"
    await connect(driver, version=2, schedule=given(region="us"))
    assert await arguments(driver) == {"region": "us"}
    theirs = msgspec.structs.replace(given(region="asia"), definition_id="shop:report")
    await driver.engine.schedules.put("shop:report", theirs)
    await connect(driver, version=3, schedule=given(region="eu"))
    assert await arguments(driver) == {"region": "asia"}
    assert await states(driver) == {"schedule": "CHANGED"}
    assert (await driver.engine.declarations.apply("schedule", "shop:report")).state == "AS_IN_CODE"
    assert await arguments(driver) == {"region": "eu"}
    body = (await declared(driver))["schedule"].body
    assert body is not None
    assert "variables" not in body
    with pytest.raises(BadRequest, match=r"schedule\.variables: must be a JSON object"):
        await connect(driver, version=4, schedule=msgspec.structs.replace(NIGHTLY, variables=msgspec.Raw(b"[1]")))


@pytest.mark.parametrize("number", ["1e30", "-1.50e-7", "0.0", "18446744073709551616", "1E22"])
async def test_a_number_among_the_arguments_is_as_it_was_put(driver: Driver, number: str):
    """PostgreSQL gives all of its digits."""
    spec = msgspec.structs.replace(NIGHTLY, variables=msgspec.Raw(f'{{"most":{number}}}'.encode()))
    await connect(driver, schedule=spec)
    before = driver.rows("SELECT xmin::text, spec::text, variables::text FROM schedule")
    await connect(driver, schedule=spec)
    assert driver.rows("SELECT xmin::text, spec::text, variables::text FROM schedule") == before
    other = msgspec.structs.replace(spec, variables=msgspec.Raw(b'{"most":7}'))
    await connect(driver, version=2, schedule=other)
    assert await arguments(driver) == {"most": 7}


async def arguments(driver: Driver) -> object:
    return msgspec.json.decode(bytes((await driver.engine.schedules.get("shop:report")).variables))


async def test_arguments_in_code_are_kept_encrypted(make_driver: MakeDriver):
    driver = make_driver(encryption_keys=Secret(KEYS["k1"]))
    secret = msgspec.structs.replace(NIGHTLY, variables=msgspec.Raw(b'{"card":"4111"}'))
    await connect(driver, schedule=secret)
    kept = driver.rows("SELECT body::text, applied::text FROM declared")
    assert "4111" not in str(kept)
    assert '"$enc"' in kept[0][0]
    assert kept[0][0] == kept[0][1], "it was put"
    before = driver.rows("SELECT fire_at, variables::text FROM schedule")
    await connect(driver, schedule=secret)  # sealed anew, and the same
    assert driver.rows("SELECT fire_at, variables::text FROM schedule") == before
    await connect(driver, version=2, schedule=msgspec.structs.replace(secret, variables=msgspec.Raw(b'{"card":"5"}')))
    assert await arguments(driver) == {"card": "5"}
    await driver.engine.schedules.put("shop:report", msgspec.structs.replace(NIGHTLY, definition_id="shop:report"))
    assert (await driver.engine.declarations.apply("schedule", "shop:report")).state == "AS_IN_CODE"
    assert await arguments(driver) == {"card": "5"}


async def test_a_program_connects_after_the_key_of_its_arguments_is_gone(make_driver: MakeDriver):
    with_arguments = msgspec.structs.replace(NIGHTLY, variables=msgspec.Raw(b'{"card":"4111"}'))
    await connect(make_driver(encryption_keys=Secret(KEYS["k1"])), schedule=with_arguments)
    driver = make_driver(encryption_keys=Secret(KEYS["k2"]))
    assert await states(driver) == {"schedule": "CHANGED"}
    with pytest.raises(KeyMissing, match="lacks the key of the arguments of schedule 'shop:report'"):
        await driver.engine.declarations.apply("schedule", "shop:report")
    await connect(driver, schedule=with_arguments)
    assert await states(driver) == {"schedule": "CHANGED"}, "what nobody can read is not put over"
    assert (await driver.engine.declarations.apply("schedule", "shop:report")).state == "AS_IN_CODE"
    assert await arguments(driver) == {"card": "4111"}


async def test_arguments_of_a_schedule_wait_until_every_engine_knows_them(driver: Driver):
    with psycopg.connect(driver.dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version)"
            " VALUES (900, gen_random_uuid(), penstock_now() + interval '1 h', 'polling', 'old', 24)"
        )
    with pytest.raises(Conflict, match="old knows schema version 24, not 25"):
        await connect(driver, schedule=msgspec.structs.replace(NIGHTLY, variables=msgspec.Raw(b'{"region":"eu"}')))
    assert await states(driver) == {}
    await connect(driver, schedule=NIGHTLY)
    assert await states(driver) == {"schedule": "AS_IN_CODE"}
