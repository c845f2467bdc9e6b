"""Starts that begin later, and those that share a key: docs/starts.md, question by question, and what may go wrong."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import trio
from psycopg.errors import QueryCanceled

from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.requests.ids import show_instance
from penstock.errors import BadRequest, Conflict, IdempotencyConflict, NotFound, Throttled
from penstock.settings.secret import Secret
from penstock.store.rows import instances as store
from penstock.testing.definitions import definition, end, fork, linear, step
from penstock.testing.invariants import assert_invariants
from penstock.wire.edits import MigrationRequest, StepSkip, TokenMove, VariablesEdit
from penstock.wire.model import Instance, Job, StartRequest, StartResult
from penstock.wire.start import Debounce, Dedupe, Throttle
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number, variables_of
from tests.engine.test_encryption import KEYS
from tests.house.sources import TOP
from tests.shapes import assign, wait
from tests.waiting import wait_until

PAGE = (TOP / "docs" / "starts.md").read_text()
ASKED = PAGE.partition("\n## For all callers")[0]
QUESTIONS = {section.partition("\n")[0]: section for section in ASKED.split("\n### ")[1:]}
LINE = linear(1, definition_id="report")
FORK = fork(1, 1)
ASKS = definition(step("ask", "USER_TASK", nextStep="end"), end(), definition_id="asks")
HOUR_S = 3_600.0


def asked(question: str, **changes: Any) -> StartRequest:
    """The request that the page answers a question with."""
    [body] = re.findall(r"```json\n(.*?)```", QUESTIONS[question], re.DOTALL)
    request = msgspec.json.decode(body, type=StartRequest)
    variables = msgspec.json.encode(changes.pop("variables", None) or {"n": 1})
    return msgspec.structs.replace(request, variables=variables, **changes)


async def ask(driver: Driver, question: str, **changes: Any) -> Instance:
    return await driver.engine.instances.start(asked(question, **changes))


async def ready(driver: Driver) -> None:
    driver.clock.stop()
    await driver.upload(LINE)


async def test_a_start_at_a_time_is_there_and_begins_then(driver: Driver) -> None:
    await ready(driver)
    at = driver.clock.now() + timedelta(hours=9)
    made = await ask(driver, "Begin tomorrow at eight", start_at=at.isoformat(), flow_key="tenant", priority=2)
    assert (made.status, made.current_step_ids, made.start_at) == ("ACTIVE", [], at)
    assert msgspec.structs.replace(await driver.view(made.id), variables=made.variables) == made
    (listed,) = (await driver.engine.instances.list(InstanceFilter(), 0, 10)).items
    assert (listed.id, listed.start_at) == (made.id, at)
    standing = await driver.engine.diagnosis.state(made.id)
    assert (standing.why.code, standing.why.next) == ("waits-for-time", at)
    assert_invariants(driver.dsn)
    assert await driver.due(9 * HOUR_S - 1) == 0
    assert await driver.poll("work") == []
    assert await driver.history(made.id) == []
    assert await driver.due(1) == 1
    begun = await driver.view(made.id)
    assert (begun.start_at, begun.current_step_ids, begun.started_at) == (None, ["task-1"], made.started_at)
    job = await driver.one("work")
    assert (job.instance_id, variables_of(job)) == (made.id, {"n": 1})
    assert driver.rows("SELECT priority, flow_key FROM token") == [(2, "tenant")]
    await driver.complete(job)
    assert await driver.status(made.id) == "COMPLETED"
    assert_invariants(driver.dsn)


async def test_what_is_cancelled_before_it_begins_did_nothing(driver: Driver) -> None:
    await ready(driver)
    made = await ask(driver, "In ten minutes, unless somebody cancels", instance_key="k")
    assert made.start_at == driver.clock.now() + timedelta(minutes=10)
    assert (await driver.cancel(made.id, "no")).status == "CANCELLED"
    assert await driver.history(made.id) == []
    assert driver.rows("SELECT FROM timer") == []
    assert (await driver.start("report", instance_key="k")).id != made.id, "its key is free"
    assert_invariants(driver.dsn)


async def gives_up(*args: Any, **kwargs: Any) -> list[int]:
    raise QueryCanceled


async def test_lists_find_what_has_not_begun(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await driver.upload({**LINE, "searchAttributes": {"n": "NUMBER"}})
    await driver.upload(definition(wait("a", "z"), end("z"), definition_id="waits"))
    begun = await driver.start("report", {"n": 1}, business_key="b")
    made = [
        await driver.start("report", {"n": 1}, delay="PT1H", business_key="b"),
        await driver.start("waits", delay="PT1H"),
    ]
    soon = await driver.start("report", {"n": 1}, delay="PT0.001S")
    assert await driver.due(1) == 1
    await driver.start("waits")
    instances = driver.engine.instances

    async def found(**filters: Any) -> list[str]:
        wanted = InstanceFilter(delayed=True, **filters)
        page = await instances.find_slice(wanted, None, 10)
        listed = await instances.find(wanted, 0, 10)
        assert (listed.items, listed.total) == (page.items, len(page.items))
        assert (await instances.count(wanted)).count == len(page.items)
        return [show_instance(id) for id in page.items]

    first, second = made[0].id, made[1].id
    assert await found() == await found(status="ACTIVE") == [second, first]
    assert await found(definition_id="report") == await found(business_key="b") == [first]
    assert await found(business_key_prefix="b", attributes={"n": "1"}) == [first]
    assert await found(started_before=begun.started_at) == []
    assert await found(parent_instance_id=begun.id) == []
    await driver.cancel(first, "no")
    assert await found(definition_id="report") == []
    assert soon.id not in await found()
    with monkeypatch.context() as patch:  # as among very many: it walks
        patch.setattr(store, "find_ids", gives_up)
        assert await found() == [second]
        assert await found(definition_id="report") == []
    with pytest.raises(BadRequest, match="delayed: can only be combined with the status ACTIVE"):
        await found(status="WAITING")
    with pytest.raises(BadRequest, match="instanceKey: can only be combined with definitionId"):
        await found(definition_id="report", instance_key="k")


@pytest.mark.parametrize("first", ["wait", "transformation"])
async def test_a_delayed_start_enters_any_first_step(driver: Driver, first: str) -> None:
    steps = {"wait": wait("a", "z"), "transformation": assign("a", {"x": 1}, "z")}
    await driver.upload(definition(steps[first], end("z"), definition_id="report"))
    driver.clock.stop()
    made = await driver.start("report", delay="PT1H")
    if first == "wait":
        await driver.signal(made.id, "a", {"x": 1}, buffer=True)
    assert await driver.status(made.id) == "ACTIVE"
    assert await driver.due(HOUR_S) == 1
    view = await driver.view(made.id)
    assert (view.status, variables_of(view)) == ("COMPLETED", {"x": 1})
    assert_invariants(driver.dsn)


@pytest.mark.parametrize("about", [FORK, ASKS], ids=["fork", "user task"])
async def test_a_delayed_start_waits_where_its_first_step_does(driver: Driver, about: dict[str, Any]) -> None:
    await driver.upload(about)
    made = await driver.start(about["id"], delay="PT0.001S")
    assert await driver.due(1) == 1
    now = await driver.start(about["id"])
    assert (await driver.view(made.id)).current_step_ids == now.current_step_ids != []
    assert_invariants(driver.dsn)


async def test_a_job_that_begins_late_comes_behind_what_waits(driver: Driver, nursery: trio.Nursery) -> None:
    await driver.upload(LINE)
    made = [await driver.start("report", delay="PT0.001S") for _ in range(2)]
    before = await driver.start("report")
    assert (await driver.one("work")).instance_id == before.id
    again = await driver.start("report")
    put_off = "UPDATE timer SET fire_at = fire_at + interval '1 h' WHERE instance_id = %s RETURNING 1"
    driver.rows(put_off, number(made[1].id))
    assert await driver.due(1) == 1
    assert [job.instance_id for job in await driver.poll("work")] == [again.id, made[0].id]
    jobs: list[Job] = []

    async def poll() -> None:
        jobs.extend(await driver.poll("work", wait=60))

    async def parked() -> bool:
        return len(driver.engine.polls.waiters) == 1

    async def handed_over() -> bool:
        return bool(jobs)

    nursery.start_soon(poll)
    await wait_until(parked)
    assert await driver.due(HOUR_S) == 1
    await wait_until(handed_over)
    assert [(job.instance_id, job.attempt) for job in jobs] == [(made[1].id, 1)]
    await driver.complete(jobs[0])
    assert await driver.status(made[1].id) == "COMPLETED"
    assert_invariants(driver.dsn)


async def test_what_is_mended_before_it_begins_stays_mended(driver: Driver) -> None:
    await ready(driver)
    made = await ask(driver, "In ten minutes, unless somebody cancels")
    edit = VariablesEdit(set=msgspec.Raw(b'{"m":2}'), remove=["n"])
    assert variables_of(await driver.engine.repair.edit_variables(made.id, edit)) == {"m": 2}
    with pytest.raises((Conflict, NotFound)):
        await driver.engine.repair.skip(made.id, StepSkip(step_id="task-1"))
    with pytest.raises((Conflict, NotFound)):
        await driver.engine.repair.move(made.id, TokenMove(step_id="task-1", to_step_id="end"))
    await driver.upload(linear(2, definition_id="report"))
    await driver.engine.migrations.migrate(made.id, MigrationRequest())
    assert_invariants(driver.dsn)
    assert await driver.due(600) == 1
    assert variables_of(await driver.one("work")) == {"m": 2}
    assert (await driver.view(made.id)).definition_version == 2
    assert_invariants(driver.dsn)


async def test_within_the_window_the_first_instance_is_the_answer(driver: Driver) -> None:
    await ready(driver)
    first = await ask(driver, "The same request twice", idempotency_key="one")
    assert first.deduplicated is None
    await driver.complete(await driver.one("work"))
    again = await ask(driver, "The same request twice", idempotency_key="two", variables={"n": 2})
    assert (again.id, again.status, again.deduplicated) == (first.id, "COMPLETED", True)
    assert (await ask(driver, "The same request twice", idempotency_key="one")).status == "ACTIVE", "the first answer"
    assert await ask(driver, "The same request twice", idempotency_key="two", variables={"n": 2}) == again
    other = asked("The same request twice", idempotency_key="two", dedupe=Dedupe("other", "PT1H"), variables={"n": 2})
    with pytest.raises(IdempotencyConflict):
        await driver.engine.instances.start(other)
    driver.clock.advance(HOUR_S)
    assert (await ask(driver, "The same request twice")).id != first.id
    assert driver.rows("SELECT count(*) FROM instance") == [(2,)]


async def test_a_window_whose_instance_is_gone_is_free(driver: Driver) -> None:
    await ready(driver)
    first = await ask(driver, "The same request twice")
    await driver.complete(await driver.one("work"))
    driver.rows("DELETE FROM instance RETURNING id")
    second = await ask(driver, "The same request twice")
    assert (second.id != first.id, second.deduplicated) == (True, None)
    assert (await ask(driver, "The same request twice")).id == second.id


async def test_two_engines_start_once_for_a_key(make_driver: MakeDriver) -> None:
    one, two = make_driver(), make_driver()
    await ready(one)
    answers: list[Instance] = []

    async def start(driver: Driver) -> None:
        answers.append(await ask(driver, "The same request twice"))

    async with trio.open_nursery() as nursery:
        for driver in (one, two) * 8:
            nursery.start_soon(start, driver)
    assert len({answer.id for answer in answers}) == 1
    assert sum(answer.deduplicated is None for answer in answers) == 1
    assert one.rows("SELECT count(*) FROM instance") == [(1,)]


async def test_what_is_too_much_is_refused_with_a_time(driver: Driver) -> None:
    await ready(driver)
    await ask(driver, "At most so many in a period")
    before = driver.snapshot()
    with pytest.raises(Throttled) as refused:
        await ask(driver, "At most so many in a period", idempotency_key="k")
    assert refused.value.retry_after_s == pytest.approx(60)
    assert driver.snapshot() == before, "nothing of it is kept"
    await ask(driver, "At most so many in a period", throttle=Throttle("other", 1, "PT1M"))
    driver.clock.advance(60)
    await ask(driver, "At most so many in a period", idempotency_key="k")
    assert driver.rows("SELECT count(*) FROM instance") == [(3,)]


async def test_a_period_sees_its_limit_and_the_burst(driver: Driver) -> None:
    await ready(driver)
    rule = Throttle("k", 10, "PT10S", 3)
    begun = 0
    for _ in range(40):  # one try each half second, for two periods
        try:
            await driver.start("report", throttle=rule)
            begun += 1
        except Throttled:
            pass
        driver.clock.advance(0.5)
    assert begun == 3 + 19, "the burst, and one each second"


async def test_a_burst_is_spread_evenly_in_its_order(make_driver: MakeDriver) -> None:
    one, two = make_driver(), make_driver()
    await ready(one)
    now = one.clock.now()
    made = [await ask(driver, "Spread a burst") for driver in (one, two, one, two)]
    assert [view.start_at for view in made] == [None, *(now + timedelta(minutes=n) for n in (1, 2, 3))]
    assert [len(await one.poll("work")) for _ in range(2)] == [1, 0]
    for view in made[1:]:
        assert await two.due(60) == 1
        (job,) = await one.poll("work")
        assert job.instance_id == view.id
    assert_invariants(one.dsn)


async def test_late_starts_leave_with_the_throttles_spacing(make_driver: MakeDriver) -> None:
    """Nobody looks for four and a half minutes: what came due meanwhile begins a minute apart, what is due later behind
    it."""
    one, two = make_driver(), make_driver()
    await ready(one)
    made = [await ask(one, "Spread a burst") for _ in range(7)]
    first = await one.poll("work")
    assert [job.instance_id for job in first] == [made[0].id]
    one.clock.advance(270)
    begun: list[str] = []
    for engine in (one, two, one, one, two, one):
        await engine.due()
        await engine.due()
        (job,) = await one.poll("work")
        begun.append(job.instance_id)
        one.clock.advance(60)
    assert begun == [view.id for view in made[1:]]
    assert one.rows("SELECT count(*) FROM timer") == [(0,)]
    assert_invariants(one.dsn)


async def test_starts_that_older_engines_put_off_begin_once(make_driver: MakeDriver) -> None:
    """Those know no line: theirs keep their times, also beside the line of those of newer engines."""
    one, two = make_driver(), make_driver()
    await ready(one)
    made = [await ask(one, "Spread a burst") for _ in range(6)]
    older = [made[n].id for n in (1, 3)]
    for id in older:
        one.rows("UPDATE timer SET throttle = NULL WHERE instance_id = %s RETURNING 1", int(id, 16))
    one.clock.advance(600)
    begun = []
    for engine in (one, two, one, two):
        await engine.due()
        begun.append({job.instance_id for job in await one.poll("work")})
        one.clock.advance(60)
    assert begun == [{made[0].id, made[2].id, *older}, {made[4].id}, {made[5].id}, set()]
    assert one.rows("SELECT count(*) FROM timer") == [(0,)]
    assert_invariants(one.dsn)


async def test_a_late_line_is_told_to_new_starts(driver: Driver) -> None:
    await ready(driver)
    made = [await ask(driver, "Spread a burst") for _ in range(4)]
    driver.clock.advance(600)
    assert await driver.due() == 1
    new = await ask(driver, "Spread a burst")
    assert new.start_at == driver.clock.now() + timedelta(minutes=3)
    shown = await driver.view(made[3].id)
    assert shown.start_at == driver.clock.now() + timedelta(minutes=2)
    driver.clock.advance(600)  # and nobody looks again: none begins beside another
    begun = [await driver.due(0 if n == 0 else 60) for n in range(4)]
    assert begun == [1, 1, 1, 0]


async def test_of_many_changes_only_the_last_begins(make_driver: MakeDriver) -> None:
    one, two = make_driver(), make_driver()
    await ready(one)
    question = "Only the last of many changes"
    first = await ask(one, question, variables={"state": "new", "a": 1})
    assert first.deduplicated is None
    for n, driver in enumerate((two, one)):
        driver.clock.advance(20)
        view = await ask(driver, question, variables={"state": n})
        assert (view.id, view.deduplicated, variables_of(view)) == (first.id, True, {"state": n})
        assert view.start_at == one.clock.now() + timedelta(seconds=30)
    assert await one.due(29) == 0
    assert await one.due(1) == 1
    assert variables_of(await two.one("work")) == {"state": 1}
    after = await ask(two, question)
    assert (after.id != first.id, after.deduplicated) == (True, None), "it has begun: this is the next one"
    await two.cancel(after.id)
    assert (await ask(two, question)).id != after.id
    kinds = [record.kind for record in (await one.engine.instances.audit(first.id)).items]
    assert kinds.count("DEBOUNCED") == 2
    assert_invariants(one.dsn)


async def test_calls_that_never_stop_do_not_keep_it_off(driver: Driver) -> None:
    await ready(driver)
    first = await ask(driver, "Only the last of many changes")
    latest = driver.clock.now() + timedelta(minutes=5)
    for _ in range(14):
        driver.clock.advance(20)
        view = await ask(driver, "Only the last of many changes")
        assert view.id == first.id
        assert view.start_at == min(driver.clock.now() + timedelta(seconds=30), latest)
    assert await driver.due(20) == 1
    assert (await driver.view(first.id)).start_at is None


@pytest.mark.parametrize("keys", [None, KEYS["k1"]])
async def test_merged_variables_are_those_of_all_calls(make_driver: MakeDriver, keys: str | None) -> None:
    driver = make_driver(encryption_keys=None if keys is None else Secret(keys))
    await driver.upload({**LINE, "searchAttributes": {"who": "STRING"}})
    driver.clock.stop()
    rule = Debounce("k", "PT1M", None, "MERGE")
    for variables in ({"who": "a", "n": {"x": 1}}, {"who": "b"}, {"n": {"y": 2}}):
        view = await driver.start("report", variables, debounce=rule)
    assert variables_of(view) == {"who": "b", "n": {"y": 2}}
    assert driver.rows("SELECT text FROM search_attribute") == [("b",)]
    await driver.start("report", {"n": 0}, debounce=Debounce("k", "PT1M"))
    assert driver.rows("SELECT text FROM search_attribute") == [], "the last one's alone"
    assert await driver.due(60) == 1
    assert variables_of(await driver.one("work")) == {"n": 0}


async def test_a_repeated_debounce_with_its_key_changes_nothing(driver: Driver) -> None:
    await ready(driver)
    rule = Debounce("k", "PT1M")
    await driver.start("report", {"n": 1}, debounce=rule, idempotency_key="a")
    second = await driver.start("report", {"n": 2}, debounce=rule, idempotency_key="b")
    driver.clock.advance(30)
    assert await driver.start("report", {"n": 2}, debounce=rule, idempotency_key="b") == second
    assert (await driver.view(second.id)).start_at == second.start_at


async def test_a_start_waits_for_the_end_wherever_that_is(make_driver: MakeDriver, nursery: trio.Nursery) -> None:
    driver, other = make_driver(), make_driver()
    await driver.upload(LINE)
    assert (await driver.start("report", wait_seconds=0.01)).status == "ACTIVE", "the time is over"
    await driver.complete(await driver.one("work"), {"x": 1})
    answers: list[Instance] = []

    async def start() -> None:
        answers.append(await ask(driver, "Start and wait for the result", variables={"a": 1}))

    async def parked() -> bool:
        return driver.engine.ends.calls == 1

    async def answered() -> bool:
        return driver.engine.ends.calls == 0 and len(answers) == count

    for count, worker in enumerate((driver, other), 1):
        nursery.start_soon(start)
        await wait_until(parked)
        await worker.complete(await worker.one("work"), {"x": count})
        if worker is other:
            assert await driver.engine.ends.scan_once() == 1
        await wait_until(answered)
    assert [(view.status, variables_of(view)) for view in answers] == [
        ("COMPLETED", {"a": 1, "x": 1}),
        ("COMPLETED", {"a": 1, "x": 2}),
    ]
    assert await driver.status(answers[0].id) == "COMPLETED"


async def test_a_batch_waits_for_those_that_ask_for_it(driver: Driver, nursery: trio.Nursery) -> None:
    await driver.upload(LINE)
    plain = StartRequest(definition_id="report", variables=b"{}")
    waits = msgspec.structs.replace(plain, wait_seconds=60.0)
    unknown = msgspec.structs.replace(waits, definition_id="unknown")
    requests = [waits, plain, unknown, msgspec.structs.replace(plain, wait_seconds=0.01)]
    results: list[StartResult] = []

    async def start() -> None:
        results.extend(await driver.engine.instances.start_batch(requests))

    async def over() -> bool:
        for job in await driver.poll("work"):
            await driver.complete(job)
        return bool(results)

    nursery.start_soon(start)
    await wait_until(over)
    first, second, third, _ = results
    assert first.instance is not None
    assert second.instance is not None
    assert (first.instance.status, second.instance.status, third.error) == ("COMPLETED", "ACTIVE", "not-found")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"start_at": "tomorrow"}, "startAt: 'tomorrow' is not an RFC 3339 time"),
        ({"start_at": "9031-05-04T12:00:00Z"}, "startAt: is more than 36500 days from now"),
        ({"delay": "1h"}, "delay: '1h' is not an ISO 8601 duration"),
        ({"delay": "PT1H", "start_at": "2031-05-04T12:00:00Z"}, "startAt: can't be combined with delay"),
        ({"dedupe": Dedupe("", "PT1H")}, "dedupe.key: is required"),
        ({"dedupe": Dedupe("k", "")}, "dedupe.window: is required"),
        ({"dedupe": Dedupe("k", "P367D")}, "dedupe.window: is longer than 366 days"),
        ({"dedupe": Dedupe("k", "PT1H"), "instance_key": "i"}, "dedupe: can't be combined with instanceKey"),
        (
            {"dedupe": Dedupe("k", "PT1H"), "throttle": Throttle("k", 1), "instance_key": "i"},
            "dedupe: can't be combined with instanceKey",
        ),
        ({"throttle": Throttle("k", 0)}, "throttle.limit: must be a whole number from 1 to 1000000"),
        ({"throttle": Throttle("k", 1, "PT1S", 0)}, "throttle.burst: must be a whole number from 1 to 1000000"),
        ({"throttle": Throttle("k", 1, on_excess="DROP")}, "throttle.onExcess: must be one of REJECT, DELAY"),
        ({"throttle": Throttle("k", 1), "delay": "PT1S"}, "throttle: can't be combined with delay"),
        ({"debounce": Debounce("k", "PT1M", "PT1S")}, "debounce.maxWait: must not be less than wait"),
        ({"debounce": Debounce("k", "PT1M", keep="FIRST")}, "debounce.keep: must be one of LAST, MERGE"),
        ({"debounce": Debounce("k", "PT1M"), "dedupe": Dedupe("k", "PT1M")}, "debounce: can't be combined with dedupe"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_can_not_be_is_refused_with_its_field(driver: Driver, given: dict[str, Any], reason: str) -> None:
    await ready(driver)
    before = driver.snapshot()
    with pytest.raises(BadRequest, match=f"^{re.escape(reason)}"):
        await driver.start("report", **given)
    assert driver.snapshot() == before


def old_engine(driver: Driver) -> None:
    driver.rows("UPDATE engine SET schema_version = 17 RETURNING number")
    driver.rows(
        "INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version) "
        "VALUES (1023, gen_random_uuid(), penstock_now() + interval '1 h', 'polling', 'old', 17) RETURNING 1"
    )


async def test_older_engines_have_to_be_upgraded_first(driver: Driver) -> None:
    await ready(driver)
    old_engine(driver)
    with pytest.raises(Conflict, match="upgrade all engines first"):
        await driver.start("report", delay="PT1H")
    assert (await driver.start("report")).status == "ACTIVE"


def test_the_page_answers_the_questions() -> None:
    assert len(QUESTIONS) >= 7
