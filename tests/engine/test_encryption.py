"""With keys no payload stands in the database in clear, and everything works as without."""

from __future__ import annotations

import base64
import json
from threading import get_ident
from typing import Any

import msgspec
import pytest
import trio

from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.queues.releases import UNREADABLE_PAUSE_S
from penstock.errors import Unavailable
from penstock.loop.offload import INLINE_MAX_BYTES
from penstock.settings import Secret
from penstock.store.db.vault import Vault
from penstock.testing.definitions import definition, end, linear, service
from penstock.wire.model import Heartbeat
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, variables_of
from tests.shapes import assign, choose, parallel, task, user, wait

MARK = "s3kr1t"
KEYS = {name: f"{name}={base64.b64encode(name.encode() * 16).decode()}" for name in ("k1", "k2")}

EVERYTHING = definition(
    service("first", "second", job_type="first"),
    service("second", "sum", job_type="second"),
    assign("sum", {"total": "${price + tax}", "label": "${name + '!'}"}, "choose"),
    choose("choose", {"total > 100": "ask", "true": "end"}),
    user("ask", "parked"),
    wait("parked", "last"),
    service("last", "end", job_type="last", retryCount=2),
    end(),
    definition_id="everything",
)


@pytest.fixture
def driver(make_driver: MakeDriver) -> Driver:
    return make_driver(encryption_keys=Secret(KEYS["k1"]))


def stored(driver: Driver) -> str:
    """All that stands in all tables, as text."""
    tables = [name for (name,) in driver.rows("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")]
    return "\n".join(str(driver.rows(f'SELECT t::text FROM "{name}" t')) for name in tables)


def assert_sealed(driver: Driver) -> None:
    text = stored(driver)
    assert "$enc" in text
    assert MARK not in text
    assert MARK.encode().hex() not in text  # bytea


def secret(**values: Any) -> dict[str, Any]:
    return {"name": MARK, **values}


async def test_no_kind_of_step_leaves_a_payload_in_clear(driver: Driver) -> None:
    instance = await driver.run(EVERYTHING, secret(price=100, nested={"deep": [MARK]}))
    await driver.signal(instance, "parked", {"early": MARK}, buffer=True)
    (kept,) = await driver.engine.tasks.buffered(instance)
    assert json.loads(bytes(kept.variables)) == {"early": MARK}  # pyright: ignore[reportArgumentType] - a stand-in
    first = await driver.one("first")
    assert variables_of(first) == secret(price=100, nested={"deep": [MARK]})
    await driver.complete(first, {"tax": 7})  # narrow
    second = await driver.one("second")
    assert variables_of(second)["tax"] == 7
    await driver.complete(second, {"second": MARK})  # wide: the conditions need clear values
    assert (await driver.variables(instance))["total"] == 107
    assert (await driver.variables(instance))["label"] == f"{MARK}!"
    await driver.finish_task(instance, "ask", {"answer": MARK})
    last = await driver.one("last")
    assert variables_of(last)["early"] == MARK
    beat = {"checkpoint": json.dumps({"at": MARK}).encode(), "progress": json.dumps(MARK).encode()}
    await driver.engine.jobs.heartbeat(Heartbeat(job_id=last.id, worker_id="w1", **beat))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in
    assert (await driver.view(instance)).progress == {"last": msgspec.Raw(json.dumps(MARK).encode())}
    await driver.fail(last)
    again = await driver.one("last")
    assert json.loads(bytes(again.checkpoint or b"")) == {"at": MARK}
    assert_sealed(driver)
    await driver.complete(again, {"last": MARK})
    assert (await driver.view(instance)).status == "COMPLETED"
    expected = secret(price=100, nested={"deep": [MARK]}, tax=7, second=MARK, total=107, label=f"{MARK}!",
                      answer=MARK, early=MARK, last=MARK)  # fmt: skip
    assert await driver.variables(instance) == expected
    assert_sealed(driver)


async def test_large_payloads_are_encrypted_and_decrypted_away_from_the_loop(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = "x" * (2 * INLINE_MAX_BYTES)
    loop, places = get_ident(), set[tuple[str, bool]]()

    def watch(name: str) -> None:
        call = getattr(Vault, name)

        def noted(vault: Vault, value: Any, *names: str) -> Any:
            if len(value) > INLINE_MAX_BYTES:
                places.add((name, get_ident() == loop))
            return call(vault, value, *names)

        monkeypatch.setattr(Vault, name, noted)

    verbs = ("seal", "seal_value", "open", "open_value")
    for verb in verbs:
        watch(verb)
    instance = await driver.run(EVERYTHING, secret(price=100, large=large))
    await driver.signal(instance, "parked", {"early": large}, buffer=True)
    assert len(await driver.engine.tasks.buffered(instance)) == 1
    await driver.complete(await driver.one("first"), {"tax": 7, "first": large})
    await driver.complete(await driver.one("second"), {"second": large})
    await driver.finish_task(instance, "ask", {"answer": large})
    last = await driver.one("last")
    beat = {"checkpoint": json.dumps(large).encode(), "progress": json.dumps(large).encode()}
    await driver.engine.jobs.heartbeat(Heartbeat(job_id=last.id, worker_id="w1", **beat))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in
    await driver.fail(last)
    again = await driver.one("last")
    assert json.loads(bytes(again.checkpoint or b"")) == large
    await driver.complete(again, {"last": large})
    assert (await driver.variables(instance))["early"] == large
    await driver.upload(linear(1))
    first, repeated = [await driver.start("linear", {"large": large}, idempotency_key="once") for _ in range(2)]
    assert repeated.id == first.id
    assert places == {(verb, False) for verb in verbs}


async def test_names_and_keys_stay_readable(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.start("linear", secret(), business_key="B-1", instance_key="I-1")
    text = stored(driver)
    assert all(word in text for word in ("B-1", "I-1", "name"))
    page = await driver.engine.instances.list(InstanceFilter(business_key="B-1"), 0, 10)
    assert [json.loads(bytes(item.variables)) for item in page.items] == [secret()]  # pyright: ignore[reportArgumentType] - a stand-in
    assert (await driver.start("linear", {"other": 1}, instance_key="I-1")).business_key == "B-1"


async def test_a_kept_answer_is_sealed_and_given_again(driver: Driver) -> None:
    await driver.upload(linear(1))
    first = await driver.start("linear", secret(), idempotency_key="once")
    assert_sealed(driver)
    again = await driver.start("linear", secret(), idempotency_key="once")
    assert (again.id, json.loads(bytes(again.variables))) == (first.id, secret())  # pyright: ignore[reportArgumentType] - a stand-in


async def test_branches_merge_and_long_runs_fold_by_name(driver: Driver) -> None:
    both = await driver.run(parallel(task("a", "join"), task("b", "join")), secret(both=0))
    await driver.complete(await driver.one("a"), {"both": MARK, "a": 1})
    await driver.complete(await driver.one("b"), {"both": f"{MARK}2", "b": 2})
    assert await driver.variables(both) == secret(both=f"{MARK}2", a=1, b=2)
    loop = definition(
        service("work", "again", job_type="work"), choose("again", {"n < 70": "work", "true": "end"}), end(),
        definition_id="loop",
    )  # fmt: skip
    instance = await driver.run(loop, secret(n=0))
    for n in range(1, 71):
        job = await driver.one("work")
        assert variables_of(job)["n"] == n - 1
        await driver.complete(job, {"n": n, f"x{n % 3}": MARK})
    assert await driver.variables(instance) == secret(n=70, x0=MARK, x1=MARK, x2=MARK)
    assert_sealed(driver)


async def test_a_key_is_rotated_while_instances_run(make_driver: MakeDriver) -> None:
    before = make_driver(encryption_keys=Secret(KEYS["k1"]))
    instance = await before.run(linear(3), secret())
    await before.complete(await before.one("work"), {"by": "k1"})
    after = make_driver(encryption_keys=Secret(f"{KEYS['k2']} {KEYS['k1']}"))
    job = await after.one("work")
    assert variables_of(job) == secret(by="k1")
    await after.complete(job, {"name": MARK * 2, "more": MARK})
    assert await after.variables(instance) == {"name": MARK * 2, "by": "k1", "more": MARK}
    assert "k2:" in stored(after)
    assert_sealed(after)


async def test_instances_from_before_are_read_and_go_on(make_driver: MakeDriver) -> None:
    plain = make_driver()
    instance = await plain.run(linear(2), secret(own={"$enc": "mine"}))
    await plain.complete(await plain.one("work"), {"step": 1})
    keyed = make_driver(encryption_keys=Secret(KEYS["k1"]))
    job = await keyed.one("work")
    assert variables_of(job) == secret(own={"$enc": "mine"}, step=1)
    await keyed.complete(job, {"sealed": MARK})
    assert await keyed.variables(instance) == secret(own={"$enc": "mine"}, step=1, sealed=MARK)


async def test_a_missing_key_harms_neither_engine_nor_neighbours(make_driver: MakeDriver) -> None:
    keyed = make_driver(encryption_keys=Secret(KEYS["k1"]))
    sealed = await keyed.run(EVERYTHING, secret(price=1))
    await keyed.signal(sealed, "parked", {"x": MARK}, buffer=True)
    await keyed.start("everything", secret(price=2), idempotency_key="once")
    other = make_driver(encryption_keys=Secret(KEYS["k2"]), services=True)
    for call in (
        lambda: other.view(sealed),
        lambda: other.engine.tasks.buffered(sealed),
        lambda: other.engine.instances.list(InstanceFilter(), 0, 10),
        lambda: other.cancel(sealed),
        lambda: other.start("everything", secret(price=2), idempotency_key="once"),
    ):
        with pytest.raises(Unavailable, match="key"):
            await call()
    readable = await other.start("everything", {"name": "clear", "price": 5})
    with trio.fail_after(60):
        while True:  # those that can't be read are handed out to nobody, and go back
            jobs = await other.poll("first", n=3, wait=1)
            if jobs:
                break
    assert [job.instance_id for job in jobs] == [readable.id]
    await other.complete(jobs[0], {"tax": 1})
    # with its key the instance goes on where it stood
    both = make_driver(encryption_keys=Secret(f"{KEYS['k2']} {KEYS['k1']}"))
    assert (await both.view(sealed)).status == "ACTIVE"
    assert await both.variables(sealed) == secret(price=1)


async def test_an_unreadable_job_is_not_claimed_again_and_again(make_driver: MakeDriver) -> None:
    keyed = make_driver(encryption_keys=Secret(KEYS["k1"]))
    sealed = await keyed.run(linear(1), secret())
    other = make_driver(encryption_keys=Secret(KEYS["k2"]), services=True)
    assert await other.poll("work", wait=2) == []
    claims = keyed.rows("SELECT attempt FROM token")[0][0]
    assert claims == 1
    other.engine.polls.releases.return_unreadable(
        trio.current_time() + UNREADABLE_PAUSE_S
    )  # as the sweeper does in time
    await other.engine.polls.releases.wait_flushed()
    assert (await keyed.one("work")).instance_id == sealed


@pytest.mark.parametrize("keys", [None, Secret(KEYS["k1"])])
async def test_secret_variables_stay_out_of_lists_and_records(make_driver: MakeDriver, keys: Secret | None) -> None:
    driver = make_driver(encryption_keys=keys)
    marked = {**linear(1), "metadata": {"secretVariables": ["name", "later", 5]}}
    await driver.run(marked, secret(shown=1))
    job = await driver.one("work")
    assert variables_of(job) == secret(shown=1)
    await driver.complete(job, {"later": MARK})
    (item,) = (await driver.engine.instances.list(InstanceFilter(), 0, 10)).items
    assert json.loads(bytes(item.variables)) == {"shown": 1}  # pyright: ignore[reportArgumentType] - a stand-in
    (item,) = (await driver.engine.instances.list_slice(InstanceFilter(), None, 10)).items
    assert json.loads(bytes(item.variables)) == {"shown": 1}  # pyright: ignore[reportArgumentType] - a stand-in
    assert [
        json.loads(bytes(view.variables))  # pyright: ignore[reportArgumentType] - a stand-in
        async for part in driver.engine.instances.read([int(item.id, 16)])
        for view in part
    ] == [{"shown": 1}]
    assert await driver.variables(item.id) == secret(shown=1, later=MARK)
    assert MARK not in str(driver.rows("SELECT t::text FROM audit t"))


@pytest.mark.parametrize("metadata", [{}, {"secretVariables": "name"}, {"secretVariables": {"name": 1}}])
async def test_other_metadata_names_no_secret(driver: Driver, metadata: dict[str, Any]) -> None:
    await driver.run({**linear(1), "metadata": metadata}, secret())
    (item,) = (await driver.engine.instances.list(InstanceFilter(), 0, 10)).items
    assert json.loads(bytes(item.variables)) == secret()  # pyright: ignore[reportArgumentType] - a stand-in
