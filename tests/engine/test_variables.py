"""Variables: exact, merged shallowly, linear in long runs, never stale."""

from __future__ import annotations

import hashlib
from typing import Any

import psycopg
import pytest
import trio

from penstock.engine.queues.variables import Recollection
from penstock.errors import PayloadTooLarge
from penstock.settings import DispatchMode
from penstock.store.db.connection import TrioConnection
from penstock.store.db.outcome import InDoubt
from penstock.store.rows import instances, jobs
from penstock.testing.definitions import definition, end, linear, service, step
from penstock.wire.model import Job, JobRef, Park
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, completion, variables_of
from tests.shares import mostly_slow

ODD: dict[str, Any] = {
    "big": 10**999,
    "negative": -(2**64) - 1,
    "decimal": 0.1,
    "tiny": 5e-324,
    "null": None,
    "text": 'äöü 漢字 \N{PILE OF POO} " \\ \n {,}',
    "": "empty key",
    "deep": [[[[{"a": [None, True, {"b": {}}]}]]]],
    "list": list(range(100)),
}


async def test_every_value_comes_back_as_it_was_given(driver: Driver) -> None:
    await driver.upload(linear(2))
    view = await driver.start("linear", ODD)
    job = await driver.one("work")
    assert variables_of(job) == ODD
    await driver.complete(job, {"again": ODD})
    assert variables_of(await driver.one("work")) == {**ODD, "again": ODD}
    assert await driver.variables(view.id) == {**ODD, "again": ODD}


async def test_keys_are_replaced_and_not_merged_deeply(driver: Driver) -> None:
    await driver.upload(linear(1))
    view = await driver.start("linear", {"o": {"a": 1}, "n": 1})
    await driver.complete(await driver.one("work"), {"o": {"b": 2}, "n": None})
    assert await driver.variables(view.id) == {"o": {"b": 2}, "n": None}


async def test_large_variables(driver: Driver) -> None:
    await driver.upload(linear(2))
    large = {"blob": "x" * 256_000, **{f"key-{number}": number for number in range(10_000)}}
    await driver.start("linear", large)
    job = await driver.one("work")
    assert variables_of(job) == large
    await driver.complete(job, {"key-7": "changed"})
    assert variables_of(await driver.one("work")) == {**large, "key-7": "changed"}


def looping(limit: int) -> dict[str, Any]:
    again = step("d", "DECISION", conditionalNextSteps={f"n < {limit}": "s", "true": "end"})
    return definition(service("s", "plain"), service("plain", "d"), again, end())


@pytest.mark.slow(reason="a run of many steps")
async def test_a_long_run_is_folded_and_loses_nothing(make_driver: MakeDriver) -> None:
    driver = make_driver(variables_cache_max_bytes=0)  # every read goes to the database
    await driver.upload(looping(150))
    view = await driver.start("test", {"n": 0})
    for number in range(300):
        job = await driver.one("work")
        expected = {"n": (number + 1) // 2} | {f"k{kept % 7}": kept for kept in range(max(0, number - 7), number)}
        assert variables_of(job) == expected
        await driver.complete(job, {f"k{number % 7}": number, "n": (number + 2) // 2})
    assert (await driver.view(view.id)).status == "COMPLETED"
    folded, unfolded = driver.rows(
        "SELECT folded_pos > 0, (SELECT count(*) FROM history h WHERE h.instance_id = i.id AND h.pos > i.folded_pos"
        " AND h.output IS NOT NULL) FROM instance i"
    )[0]
    assert folded
    assert unfolded <= 130


@pytest.mark.parametrize("cache", [0, 1 << 20])
async def test_a_job_always_has_the_latest_variables_of_all_branches(make_driver: MakeDriver, cache: int) -> None:
    driver = make_driver(variables_cache_max_bytes=cache)
    gate = step("gate", "PARALLEL_GATEWAY", parallelNextSteps=["a1", "b1"], joinStep="join")
    await driver.upload(
        definition(
            gate,
            service("a1", "a2", job_type="a"),
            service("a2", "join", job_type="a"),
            service("b1", "b2", job_type="b"),
            service("b2", "join", job_type="b"),
            step("join", "JOIN_GATEWAY", nextStep="last"),
            service("last", "end", job_type="last"),
            end(),
        )
    )
    await driver.start("test")
    a1, b1 = await driver.one("a"), await driver.one("b")
    await driver.complete(a1, {"x": "a1"})
    await driver.complete(b1, {"x": "b1", "y": 1})
    a2 = await driver.one("a")
    assert variables_of(a2) == {"x": "b1", "y": 1}
    await driver.complete(a2, {"x": "a2"})
    b2 = await driver.one("b")
    assert variables_of(b2) == {"x": "a2", "y": 1}
    await driver.complete(b2)
    assert variables_of(await driver.one("last")) == {"x": "a2", "y": 1}


NOISE = "".join(hashlib.sha256(b"%d" % n).hexdigest() for n in range(200))


@pytest.mark.parametrize("big", [NOISE, "x" * 20_000], ids=["as they are", "compressed by PostgreSQL"])
async def test_large_variables_are_whole_whether_cached_or_read(make_driver: MakeDriver, big: str) -> None:
    one, two = make_driver(1), make_driver(2)
    await one.upload(linear(3))
    views = [await one.start("linear", {"big": big, "n": n}) for n in range(2)]
    for job in await one.poll("work", n=2):  # reads them: one statement for both
        assert variables_of(job)["big"] == big
        await one.complete(job, {"first": job.instance_id})
    known, unknown = await one.one("work"), await two.one("work", worker="w2")
    for job, view in ((known, views[0]), (unknown, views[1])):
        assert job.instance_id == view.id
        assert variables_of(job) == {"big": big, "n": views.index(view), "first": view.id}
    await two.complete(unknown, {"second": 2, "big": 1})
    assert variables_of(await one.one("work")) == {"big": 1, "n": 1, "first": views[1].id, "second": 2}
    await one.engine.jobs.release_many([JobRef(job_id=known.id, worker_id=known.worker_id, attempt=known.attempt)])  # pyright: ignore[reportArgumentType] - a stand-in
    again = await two.one("work", worker="w2")
    assert (again.attempt, variables_of(again)) == (2, variables_of(known))


async def test_a_claim_that_relies_on_memory_misses_nothing(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    claim = jobs.claim

    async def noted(
        connection: TrioConnection, slots: Any, floors: Any, *, clear: bool, known: bool, **more: Any
    ) -> Any:
        found = await claim(connection, slots, floors, clear=clear, known=known, **more)
        asked.append(known)
        assert not known or all(row.variables is None for row in found)
        return found

    monkeypatch.setattr(jobs, "claim", noted)
    one, two = make_driver(1), make_driver(2)
    await one.upload(linear(3))
    for n in range(6):
        await one.start("linear", {"n": n})
    for n in range(3):
        assert variables_of(await one.one("work")) == {"n": n}
    assert asked == [False, False, True]
    foreign = await two.one("work", worker="w2")
    await two.complete(foreign, {"m": 3})
    await two.complete(await two.one("work", worker="w2"), {"n": "other"})
    third = await one.poll("work", n=3)  # one that it started, and two of the other engine's doing
    assert list(map(variables_of, third)) == [{"n": 5}, {"n": 3, "m": 3}, {"n": "other"}]
    assert asked[-1]
    await one.start("linear", {"n": 6})
    assert variables_of(await one.one("work")) == {"n": 6}
    assert not asked[-1]


@pytest.mark.parametrize("mode", DispatchMode)
async def test_starts_are_remembered_for_claims_alone(make_driver: MakeDriver, mode: DispatchMode) -> None:
    driver = make_driver(dispatch_mode=mode, kafka_seed_brokers=("localhost:1",))
    await driver.upload(linear(2))
    await driver.start("linear", {"n": 1})
    assert driver.engine.polls.cache.statistics()[0] == (mode is DispatchMode.POLLING)


async def test_a_start_in_doubt_leaves_no_stale_variables(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed, and another engine's worker has done the first step before this engine looks."""
    one, two = make_driver(1), make_driver(2)
    start_fast = instances.start_fast
    doubts: list[InDoubt] = []

    async def doubtful(connection: TrioConnection, items: Any, **named: Any) -> Any:
        begun = await start_fast(connection, items, **named)
        if not doubts:
            doubts.append(InDoubt("its answer was lost"))
            await two.complete(await two.one("work", worker="w2"), {"n": "done", "m": 1})
            raise doubts[0]
        return begun

    await one.upload(linear(2))
    for n in range(2):  # memory is relied upon from the third claim on
        await one.start("linear", {"n": n})
        assert variables_of(await one.one("work")) == {"n": n}
    monkeypatch.setattr(instances, "start_fast", doubtful)
    await one.start("linear", {"n": 2})
    assert doubts
    assert variables_of(await one.one("work")) == {"n": "done", "m": 1}


def test_memory_that_failed_is_relied_upon_later_each_time() -> None:
    recollection = Recollection()
    relied: list[int] = []
    for _ in range(3):
        streak = 0
        while not recollection.is_good:
            recollection.note(complete=True)
            streak += 1
        relied.append(streak)
        recollection.note(complete=False)
    assert relied == [2, 4, 8]
    for _ in range(100):
        recollection.note(complete=True)
    recollection.note(complete=False)
    for _ in range(4):
        assert not recollection.is_good
        recollection.note(complete=True)
    assert recollection.is_good


MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    "kind", mostly_slow(["narrow", "wide", "user task", "wait"], quick=["wait"], reason="megabytes of variables")
)
async def test_what_exceeds_an_instances_bound_is_refused_without_effect(make_driver: MakeDriver, kind: str) -> None:
    driver = make_driver(instance_variables_max_bytes=4 * MEGABYTE)
    names = [f"s{index}" for index in range(9)]
    following = [*names[1:], "end"]
    match kind:
        case "narrow":
            steps = [service(name, after) for name, after in zip(names, following, strict=True)]
        case "wide":
            steps = [
                step(name, "SERVICE_TASK", jobType="work", conditionalNextSteps={"true": after})
                for name, after in zip(names, following, strict=True)
            ]
        case _:
            parked = "WAIT" if kind == "wait" else "USER_TASK"
            steps = [step(name, parked, nextStep=after) for name, after in zip(names, following, strict=True)]
    instance = await driver.run(definition(*steps, end()))
    other = (await driver.start("test")).id

    async def go_on(instance: str, variables: dict[str, Any]) -> None:
        (open_step,) = await driver.open_steps(instance)
        if kind == "wait":
            await driver.signal(instance, open_step, variables)
        elif kind == "user task":
            await driver.finish_task(instance, open_step, variables)
        else:
            await take()
            await driver.complete(held[instance], variables)
            del held[instance]

    async def take() -> None:
        await driver.engine.full_path.wait_flushed()  # what a fold has locked is not claimed
        held.update({job.instance_id: job for job in await driver.poll("work", n=10)})

    held: dict[str, Job] = {}
    written: dict[str, Any] = {}
    before = driver.snapshot()
    with pytest.raises(PayloadTooLarge, match="variables: the instance would have more than 4000000 bytes"):
        for index in range(len(names)):
            await take()
            before = driver.snapshot()
            await go_on(instance, {f"k{index}": "x" * 2 * MEGABYTE})
            written[f"k{index}"] = "x" * 2 * MEGABYTE
    assert driver.snapshot() == before
    assert 2 < len(written) < 9  # it is looked at each 8 MB: see `complete_fast`
    assert await driver.variables(instance) == written
    await go_on(other, {"small": 1})  # the others go on as before
    await go_on(instance, {})  # and so does what brings nothing
    await go_on(instance, dict.fromkeys(list(written)[1:]))  # or makes it small enough again
    await go_on(instance, {"small": 1})
    assert await driver.variables(instance) == {**dict.fromkeys(written), "k0": written["k0"], "small": 1}
    view = await driver.cancel(instance)
    assert view.status == "CANCELLED"


REFUSING = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.output ? 'too large' THEN RAISE 'as of a gigabyte' USING ERRCODE = 'program_limit_exceeded'; END IF;
  RETURN NEW; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON history FOR EACH ROW EXECUTE FUNCTION refuse()
"""


@pytest.mark.parametrize("length", [1, 2], ids=["narrow", "wide"])
async def test_what_postgresql_cannot_hold_is_refused_alone(make_driver: MakeDriver, length: int) -> None:
    driver = make_driver(outage_wait_seconds=600)
    with psycopg.connect(driver.dsn, autocommit=True) as connection:
        connection.execute(REFUSING.encode(), prepare=False)
    after = step("d", "DECISION", conditionalNextSteps={"true": "end"}) if length == 2 else service("d", "end")
    await driver.upload(definition(service("s", "d"), after, end()))
    for _ in range(4):
        await driver.start("test")
    jobs = await driver.poll("work", n=4)
    reports = [completion(job, {"too large" if index == 2 else "fits": 1}) for index, job in enumerate(jobs)]
    with trio.fail_after(30):
        outcomes = await driver.engine.jobs.complete_many(reports)
    assert [outcome.outcome for outcome in outcomes] == ["ok", "ok", "invalid", "ok"]
    assert "variables" in (outcomes[2].reason or "")
    with pytest.raises(PayloadTooLarge):
        await driver.complete(jobs[2], {"too large": 1})
    await driver.complete(jobs[2])


async def test_an_instance_at_its_bound_holds_nobody_up(make_driver: MakeDriver) -> None:
    driver = make_driver(instance_variables_max_bytes=4 * MEGABYTE)
    await driver.upload(looping(99))
    full, other = (await driver.start("test", {"n": 0})).id, (await driver.start("test", {"n": 0})).id
    async with driver.engine.database.connection() as connection:
        await connection.fetch(b"UPDATE token SET unfolded = 64, step = 1 WHERE id = $1", (int(full, 16),))
        await connection.fetch(
            b"UPDATE token SET step = 1 WHERE id = $1", (int(other, 16),)
        )  # where a completion takes the full path
    jobs = {job.instance_id: job for job in await driver.poll("work", n=2)}
    outcomes = await driver.engine.jobs.complete_many(
        [completion(jobs[full], {"blob": "x" * 4 * MEGABYTE}), completion(jobs[other], {"n": 1})]
    )
    assert [outcome.outcome for outcome in outcomes] == ["invalid", "ok"]
    assert await driver.variables(other) == {"n": 1}
    assert await driver.variables(full) == {"n": 0}


async def test_a_job_that_waited_hands_on_what_was_written_meanwhile(make_driver: MakeDriver) -> None:
    first = make_driver()
    second = first.beside(make_driver().engine)
    await first.upload(linear(3))
    view = await first.start("linear", {"n": 1})
    job = await first.one("work")
    parked = Park(job_id=job.id, attempt=job.attempt, worker_id="w1", signal="go")
    await second.engine.jobs.park(parked)
    await second.signal(view.id, "task-1", {"n": 2})
    again = await second.one("work")
    assert variables_of(again) == {"n": 2}
    next_one: list[Job] = []
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            next_one.append(await first.one("work"))

        nursery.start_soon(wait)
        with trio.fail_after(60):
            while not first.engine.polls.waiters.idle_for("work"):
                await trio.lowlevel.checkpoint()
        await first.complete(again)
    assert variables_of(next_one[0]) == {"n": 2}
