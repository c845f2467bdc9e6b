"""What SQL functions ask for in a program's own transaction: checked there, carried out after its commit."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import psycopg
import pytest
import trio

from penstock.engine.requests import ids
from penstock.errors import BadRequest, Conflict, NotFound, TooManyRequests
from penstock.runtime.retention import Retention
from penstock.settings import Secret
from penstock.store.rows import sql_requests as store
from penstock.testing.definitions import Json, definition, end, service
from penstock.wire.sql_request import SqlRequest
from tests.engine import runs
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.shapes import wait

KEYS = Secret("k1=" + "A" * 43 + "=")
ORDERS: Json = definition(
    service("pay", "approval", job_type="pay"), wait("approval", "end"), end(), definition_id="orders"
)
OTHERS: Json = definition(service("a", "end", job_type="a"), end(), definition_id="others")


@pytest.fixture
def shop(database_dsn: str) -> Generator[psycopg.Connection[Any]]:
    """A program's connection, with a table of its own."""
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, instance text)")
        connection.execute("INSERT INTO setting (name, value) VALUES ('schema_version_needed', '22')")
        yield connection


def call(shop: psycopg.Connection[Any], function: str, *args: object, **named: object) -> Any:
    """What a function returns."""
    given = ", ".join([*("%s" for _ in args), *(f"{name} => %s" for name in named)])
    values = [
        msgspec.json.encode(each).decode() if isinstance(each, dict) else each for each in (*args, *named.values())
    ]
    row = shop.execute(f"SELECT penstock_{function}({given})".encode(), values).fetchone()
    assert row is not None
    return row[0]


async def carry_out(driver: Driver) -> int:
    """All that there is."""
    count = 0
    while found := await driver.engine.sql_requests.run_once():
        count += found
    return count


async def failed(driver: Driver) -> list[SqlRequest]:
    return list((await driver.engine.sql_requests.list(None, None, None)).items)


async def test_a_start_comes_with_its_transaction_or_not_at_all(driver: Driver, shop: psycopg.Connection[Any]) -> None:
    await driver.upload(ORDERS)
    shop.execute("LISTEN penstock")
    with pytest.raises(ZeroDivisionError), shop.transaction():
        shop.execute("INSERT INTO orders VALUES (1, %s)", [call(shop, "start", "orders", {"n": 1})])
        raise ZeroDivisionError
    assert await carry_out(driver) == 0
    with shop.transaction():
        shop.execute("INSERT INTO orders VALUES (2, %s)", [call(shop, "start", "orders", {"n": 2}, business_key="o-2")])
        assert await carry_out(driver) == 0, "not before the commit"
    assert [notice.payload for notice in shop.notifies(timeout=30, stop_after=1)] == ["sql r"]
    assert await carry_out(driver) == 1
    ((order, instance),) = shop.execute("SELECT id, instance FROM orders").fetchall()
    assert order == 2
    seen = await driver.engine.instances.get(instance)
    assert (seen.definition_id, seen.business_key, seen.status, seen.current_step_ids) == (
        "orders", "o-2", "ACTIVE", ["pay"],
    )  # fmt: skip
    assert await driver.variables(instance) == {"n": 2}
    assert driver.rows("SELECT count(*) FROM instance") == [(1,)]
    assert driver.rows("SELECT count(*) FROM sql_request") == [(0,)]
    assert driver.rows("SELECT started_by = 'sql:' || session_user FROM instance") == [(True,)]


async def test_the_requests_of_one_transaction_are_carried_out_in_order(
    driver: Driver, shop: psycopg.Connection[Any]
) -> None:
    await driver.upload(definition(wait("first", "second"), wait("second", "end"), end(), definition_id="waits"))
    with shop.transaction():
        instances = [call(shop, "start", "waits") for _ in range(20)]
        for instance in instances:
            call(shop, "signal", instance, "first", {"a": 1})
            call(shop, "signal", instance, "second", {"a": 2})
        gone = call(shop, "start", "waits")
        call(shop, "cancel", gone, "it was a mistake")
    assert await carry_out(driver) == 62
    for instance in instances:
        assert await driver.status(instance) == "COMPLETED"
        assert await driver.variables(instance) == {"a": 2}
    assert await driver.status(gone) == "CANCELLED"
    assert await failed(driver) == []
    role = shop.info.user
    assert driver.rows("SELECT DISTINCT actor FROM audit WHERE kind = 'CANCELLED'") in ([], [(f"sql:{role}",)])


async def test_a_message_is_published_once_and_kept(driver: Driver, shop: psycopg.Connection[Any]) -> None:
    await driver.upload(
        definition(
            wait("paid", message={"name": "paid", "correlationKey": "${order}"}), end(), definition_id="messages"
        )
    )
    with shop.transaction():
        instance = call(shop, "start", "messages", {"order": "o-1"})
        call(shop, "publish", "paid", "o-1", {"amount": 3})
        call(shop, "publish", "paid", "o-2", {"amount": 4}, ttl="PT1H")
    assert await carry_out(driver) == 3
    assert await driver.status(instance) == "COMPLETED"
    assert await driver.variables(instance) == {"order": "o-1", "amount": 3}
    assert driver.rows("SELECT key FROM message") == [("o-2",)]


@pytest.mark.parametrize(
    ("function", "args", "named", "code", "reason"),
    [
        ("start", ["nothing"], {}, "PK004", "definition: 'nothing'  is unknown"),
        ("start", ["orders"], {"version": 7}, "PK004", "definition: 'orders' version 7 is unknown"),
        ("start", [None], {}, "PK003", "definition: is required"),
        ("start", ["orders", "[1]"], {}, "PK003", "variables: must be a JSON object, not array"),
        ("start", ["orders", {"a": "x" * 4_194_304}], {}, "PK007", "variables: has 4194313 bytes, more than 4194304"),
        ("start", ["orders", {"a": msgspec.Raw(b"[" * 100 + b"]" * 100)}], {}, "PK008", "nested more than 100"),
        ("start", ["orders", {"a": msgspec.Raw(b"1e400")}], {}, "PK003", "outside what an IEEE double"),
        ("start", ["orders"], {"priority": 10}, "PK003", "priority: must be 0 to 9, not 10"),
        ("start", ["orders"], {"flow_key": ""}, "PK003", "flow_key: is required"),
        ("start", ["orders"], {"start_at": "infinity"}, "PK003", "start_at: must be a time"),
        ("start", ["orders"], {"keep_instance_key": True}, "PK003", "needs an instance_key"),
        ("start", ["orders"], {"instance_key": "k" * 257}, "PK003", "instance_key: has 257 characters, more than 256"),
        ("signal", ["1", "approval"], {}, "PK005", "there is none with the id '1'"),
        ("signal", ["nonsense", "approval"], {}, "PK005", "there is none with the id 'nonsense'"),
        ("send", [None, "go"], {}, "PK005", "there is none with the id"),
        ("cancel", ["ffffffffffffffff"], {}, "PK005", "there is none with the id"),
        ("publish", ["", "k"], {}, "PK003", "name: is required"),
        ("publish", ["paid", "k"], {"deliver": "SOME"}, "PK003", "deliver: must be ONE or ALL"),
    ],
)
async def test_what_is_wrong_is_refused_in_the_transaction(
    driver: Driver,
    shop: psycopg.Connection[Any],
    function: str,
    args: list[Any],
    named: dict[str, Any],
    code: str,
    reason: str,
) -> None:
    await driver.upload(ORDERS)
    with pytest.raises(psycopg.Error) as refused:
        call(shop, function, *args, **named)
    assert (refused.value.sqlstate, reason in str(refused.value)) == (code, True), str(refused.value)
    assert driver.rows("SELECT count(*) FROM sql_request") == [(0,)]


async def test_a_key_is_one_instances(driver: Driver, shop: psycopg.Connection[Any]) -> None:
    await driver.upload(ORDERS)
    await driver.upload(OTHERS)

    def start(definition: str = "orders") -> Any:
        return call(shop, "start", definition, instance_key="k")

    first = start()
    start("others")
    for _ in range(2):  # while it waits, and when it is carried out
        with pytest.raises(psycopg.Error, match="an instance of 'orders' has the key 'k'") as refused:
            start()
        assert refused.value.sqlstate == "PK006"
        await carry_out(driver)
    await driver.engine.instances.cancel(first, None)
    assert start() != first
    await carry_out(driver)
    assert driver.rows("SELECT count(*) FROM instance WHERE instance_key = 'k'") == [(3,)]


async def test_what_only_the_engine_sees_is_kept_as_failed(driver: Driver, shop: psycopg.Connection[Any]) -> None:
    await driver.upload(ORDERS)
    with shop.transaction():
        instance = call(shop, "start", "orders", instance_key="k")
        taken = await driver.start("orders", instance_key="k")
        number = call(shop, "signal", instance, "approval")
    assert await carry_out(driver) == 2
    start, signal = await failed(driver)
    assert (start.operation, start.instance_id, start.instance_key, start.error) == ("start", instance, "k", "conflict")
    assert start.reason == f"instance '{taken.id}' has its key"
    assert (signal.id, signal.operation, signal.error) == (str(number), "signal", "not-found")
    assert await carry_out(driver) == 0
    await driver.engine.sql_requests.drop(signal.id)
    with pytest.raises(NotFound):
        await driver.engine.sql_requests.drop(signal.id)
    await driver.engine.sql_requests.retry(start.id)
    with pytest.raises(Conflict, match="has not failed"):
        await driver.engine.sql_requests.retry(start.id)
    await driver.engine.instances.cancel(taken.id, None)
    assert await carry_out(driver) == 1
    assert await driver.status(instance) == "ACTIVE"
    assert await failed(driver) == []
    with pytest.raises(BadRequest, match="state: is FAILED or WAITING"):
        await driver.engine.sql_requests.list("ODD", None, None)


async def test_an_encrypted_database_takes_no_variables(make_driver: MakeDriver, shop: psycopg.Connection[Any]) -> None:
    driver = make_driver(encryption_keys=KEYS)
    shop.execute("INSERT INTO setting (name, value) VALUES ('encrypted', 'variables')")
    await driver.upload(ORDERS)
    with pytest.raises(psycopg.Error, match="variables: the engines here encrypt them") as refused:
        call(shop, "start", "orders", {"secret": 1})
    assert refused.value.sqlstate == "PK009"
    instance = call(shop, "start", "orders", {})
    assert await carry_out(driver) == 1
    assert await driver.variables(instance) == {}


async def test_ten_thousand_ids_of_a_millisecond_differ(driver: Driver, shop: psycopg.Connection[Any]) -> None:
    await driver.upload(OTHERS)
    clock = driver.clock
    clock.stop()
    count = 10_000
    rows = shop.execute(
        f"SELECT penstock_start('others', jsonb_build_object('n', n)) FROM generate_series(1, {count}) n".encode()
    ).fetchall()
    numbers = {ids.read_instance(row[0]) for row in rows}
    assert len(numbers) == count
    assert len({number >> 22 for number in numbers}) == 1
    assert {number >> 12 & 1023 for number in numbers} <= {1020, 1021, 1022, 1023}


async def test_a_role_may_ask_for_what_it_was_allowed(driver: Driver, shop: psycopg.Connection[Any]) -> None:
    await driver.upload(ORDERS)
    await driver.upload(OTHERS)
    shop.execute("CREATE ROLE sql_clerk")
    try:
        shop.execute("SET ROLE sql_clerk")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            call(shop, "start", "orders")
        async with driver.engine.database.connection() as connection:
            await store.allow(connection, "sql_clerk", ["orders"])
        shop.execute("CREATE TEMP TABLE setting (name text, value text)")  # what it makes itself stands in no way
        instance = call(shop, "start", "orders", {"n": 1})
        call(shop, "signal", instance, "approval")
        other = (await driver.start("others")).id
        for function, args in (("start", ["others"]), ("cancel", [other]), ("publish", ["a", "b"])):
            with pytest.raises(psycopg.Error, match="the role sql_clerk may not") as refused:
                call(shop, function, *args)
            assert refused.value.sqlstate == "PK010"
        for statement in ("SELECT * FROM sql_request", "SELECT nextval('sql_instance_seq')", "DELETE FROM sql_right",
                          "SELECT penstock_asking('start', '')"):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                shop.execute(statement.encode())
        async with driver.engine.database.connection() as connection:
            await store.allow(connection, "sql_clerk")
        call(shop, "cancel", other, "no more")
        call(shop, "publish", "a", "b")
        shop.execute("RESET ROLE")
        assert await carry_out(driver) == 4
        assert await failed(driver) == []
        assert driver.rows("SELECT started_by FROM instance WHERE id = %s", ids.read_instance(instance)) == [
            ("sql:sql_clerk",)
        ]
    finally:
        shop.execute("RESET ROLE")
        shop.execute("DROP OWNED BY sql_clerk")
        shop.execute("DROP ROLE sql_clerk")


async def test_engines_of_versions_before_do_not_meet_it(driver: Driver, shop: psycopg.Connection[Any]) -> None:
    await driver.upload(ORDERS)
    shop.execute("DELETE FROM setting WHERE name = 'schema_version_needed'")
    with pytest.raises(psycopg.Error, match=r"start\(\) is not enabled here") as refused:
        call(shop, "start", "orders")
    assert refused.value.sqlstate == "PK002"
    async with driver.engine.database.connection() as connection:
        with pytest.raises(psycopg.errors.UndefinedObject):
            await store.allow(connection, "no such role")
    shop.execute(
        "INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version)"
        " VALUES (900, gen_random_uuid(), penstock_now() + interval '1 h', 'polling', 'old', 21)"
    )
    with pytest.raises(psycopg.Error, match="an engine here is too old") as refused:
        call(shop, "publish", "a", "b")
    assert refused.value.sqlstate == "PK011"
    with pytest.raises(Conflict, match="upgrade all engines first"):
        async with driver.engine.database.connection() as connection:
            await store.allow(connection, "nobody")


async def test_a_message_to_a_run_arrives_once(
    driver: Driver, shop: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await runs.begin(driver)
    with shop.transaction():
        call(shop, "send", run.instance_id, "go", {"by": "ada"})
        call(shop, "send", run.instance_id, "go", None, message_id="m-1")
        call(shop, "send", run.instance_id, "go", None, message_id="m-1")
    await lose_the_end(driver, monkeypatch)
    assert await carry_out(driver) == 3
    found = driver.rows("SELECT name, payload, sender FROM journal WHERE kind = 4 OR name = 'go' ORDER BY pos")
    assert found == [("go", '{"by": "ada"}', f"sql:{shop.info.user}"), ("go", "null", f"sql:{shop.info.user}")]


async def lose_the_end(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carry out what there is, and die before it is written that it was."""

    async def lost(*_: object) -> None:
        raise psycopg.OperationalError("the connection is lost")

    with monkeypatch.context() as patched:
        patched.setattr(store, "finish", lost)
        with pytest.raises(psycopg.OperationalError, match="the connection is lost"):
            await driver.engine.sql_requests.run_once()


async def test_what_an_engine_did_before_it_died_is_done_once(
    make_driver: MakeDriver, shop: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_driver(), make_driver()
    await first.upload(ORDERS)
    await first.upload(definition(wait("w"), end(), definition_id="waits"))
    open_one = (await first.start("orders")).id
    with shop.transaction():
        fast = call(shop, "start", "orders", {"n": 1})
        full = call(shop, "start", "waits", {"n": 2}, instance_key="k")
        call(shop, "signal", open_one, "approval", {"once": 1})
        call(shop, "publish", "paid", "o-1")
        call(shop, "cancel", full)
    await lose_the_end(first, monkeypatch)
    assert await carry_out(second) == 5
    assert await failed(second) == []
    assert first.rows("SELECT count(*) FROM instance") == [(3,)]
    assert await first.status(fast) == "ACTIVE"
    assert await first.status(full) == "CANCELLED"
    assert first.rows("SELECT count(*) FROM buffered_signal") == [(1,)]
    assert first.rows("SELECT count(*) FROM message") == [(1,)]


async def test_a_start_that_another_engine_carries_out_meanwhile_is_not_failed(
    driver: Driver, shop: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim was lost, and what it does is not over yet."""
    await driver.upload(ORDERS)
    await driver.upload(definition(wait("w"), end(), definition_id="waits"))
    started = [call(shop, "start", name) for name in ("orders", "waits", "orders", "waits")]
    claim = store.claim

    async def claimed_before(*given: Any) -> list[store.ClaimedRequest]:
        return [request._replace(is_started=False) for request in await claim(*given)]

    await lose_the_end(driver, monkeypatch)
    new = call(shop, "start", "orders")
    with monkeypatch.context() as patched:
        patched.setattr(store, "claim", claimed_before)
        assert await driver.engine.sql_requests.run_once() == 5
    assert await failed(driver) == []
    assert driver.rows("SELECT count(*) FROM sql_request") == [(0,)]
    assert {ids.show_instance(row[0]) for row in driver.rows("SELECT id FROM instance")} == {*started, new}


async def test_two_engines_share_the_requests(make_driver: MakeDriver, shop: psycopg.Connection[Any]) -> None:
    engines = make_driver(), make_driver()
    await engines[0].upload(definition(wait("w"), end(), definition_id="waits"))
    for _ in range(60):
        with shop.transaction():
            for _ in range(5):
                instance = call(shop, "start", "waits")
                call(shop, "signal", instance, "w")
    counts: list[int] = []

    async def work(driver: Driver) -> None:
        counts.append(await carry_out(driver))

    async with trio.open_nursery() as nursery:
        for each in engines:
            nursery.start_soon(work, each)
    await carry_out(engines[0])
    assert await failed(engines[0]) == []
    assert engines[0].rows("SELECT status, count(*) FROM instance GROUP BY 1") == [(1, 300)]


def test_of_twenty_writers_of_a_key_one_has_it(database_dsn: str, shop: psycopg.Connection[Any]) -> None:
    shop.execute(
        "INSERT INTO definition (id, version, name, content, uploaded_at) VALUES ('orders', 1, '', '{}', now())"
    )

    def write(number: int) -> str | None:
        with psycopg.connect(database_dsn) as connection:
            try:
                connection.execute("INSERT INTO orders VALUES (%s)", [number])
                call(connection, "start", "orders", instance_key="k")
            except psycopg.Error as error:
                return error.sqlstate
        return None

    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(write, range(20)))
    assert sorted(map(str, outcomes)) == ["None"] + ["PK006"] * 19
    assert shop.execute("SELECT count(*) FROM sql_request").fetchone() == (1,)
    assert shop.execute("SELECT id FROM orders").fetchall() == [(outcomes.index(None),)]
    shop.execute("DELETE FROM sql_request")
    shop.execute("DELETE FROM definition")


async def test_a_thousand_starts_of_one_transaction(driver: Driver, shop: psycopg.Connection[Any]) -> None:
    await driver.upload(OTHERS)
    with shop.transaction():
        rows = shop.execute(
            "SELECT penstock_start('others', jsonb_build_object('n', n)) FROM generate_series(1, 1000) n"
        ).fetchall()
    assert await carry_out(driver) == 1000
    assert driver.rows("SELECT count(*), count(DISTINCT vars ->> 'n') FROM instance") == [(1000, 1000)]
    assert {ids.show_instance(row[0]) for row in driver.rows("SELECT id FROM instance")} == {row[0] for row in rows}
    assert driver.rows("SELECT count(*) FROM ready") == [(1000,)]


async def test_starts_with_keys_of_their_own_are_in_few_transactions(
    driver: Driver, shop: psycopg.Connection[Any]
) -> None:
    await driver.upload(OTHERS)
    held = (await driver.start("others", instance_key="k 150")).id
    shop.execute("DELETE FROM instance_key")  # as if it came to be between the check and the start
    rows = shop.execute(
        "SELECT penstock_start('others', instance_key => 'k ' || n) FROM generate_series(1, 200) n"
    ).fetchall()
    shop.execute("INSERT INTO instance_key VALUES ('others', 'k 150', %s)", [ids.read_instance(held)])
    assert await carry_out(driver) == 200
    ((transactions, instances),) = driver.rows("SELECT count(DISTINCT xmin::text), count(*) FROM instance")
    assert instances == 200
    assert transactions < 100
    (refused,) = await failed(driver)
    assert (refused.instance_id, refused.reason) == (rows[149][0], f"instance '{held}' has its key")


async def test_an_open_transaction_holds_up_nobody(driver: Driver, shop: psycopg.Connection[Any]) -> None:
    await driver.upload(ORDERS)
    await driver.engine.code.start(runs.ORDER, b"{}")
    instance = (await driver.start("orders", instance_key="k")).id
    job = await driver.one("pay")
    run = (await runs.take(driver))[0]
    with shop.transaction():
        call(shop, "start", "orders", {"n": 1}, instance_key="other")
        call(shop, "signal", instance, "approval")
        call(shop, "send", run.instance_id, "go")
        call(shop, "publish", "paid", "k")
        call(shop, "cancel", instance)
        locked = driver.rows(
            "SELECT DISTINCT l.relation::regclass::text, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
            " WHERE l.pid = %s AND l.mode <> 'AccessShareLock' ORDER BY 1",
            shop.info.backend_pid,
        )
        assert {name for name, _ in locked} <= {
            "sql_request", "sql_request_pkey", "sql_request_instance", "sql_request_key", "sql_request_transaction",
            "sql_request_failed", "sql_instance_seq", "sql_request_id_seq",
        }  # fmt: skip
        assert {mode for _, mode in locked} == {"RowExclusiveLock"}
        await driver.heartbeat(job)
        await runs.append(driver, run.run_lease, runs.done("/0"))
        await driver.complete(job)
        assert await driver.open_steps(instance) == ["approval"]
        assert await driver.poll("pay") == []
    assert await carry_out(driver) == 5
    assert await failed(driver) == []
    assert await driver.status(instance) in ("COMPLETED", "CANCELLED")


async def test_a_transaction_may_say_that_it_notifies_nobody(driver: Driver, shop: psycopg.Connection[Any]) -> None:
    """One that is to be prepared: PostgreSQL refuses PREPARE TRANSACTION after NOTIFY."""
    await driver.upload(OTHERS)
    shop.execute("LISTEN penstock")
    with shop.transaction():
        shop.execute("SET LOCAL penstock.notify = off")
        call(shop, "start", "others")
    shop.execute("NOTIFY penstock, 'last'")
    assert [notice.payload for notice in shop.notifies(timeout=30, stop_after=1)] == ["last"]
    assert await carry_out(driver) == 1


async def test_what_the_engine_is_too_busy_for_comes_again(
    driver: Driver, shop: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver.upload(definition(wait("w"), end(), definition_id="waits"))
    with shop.transaction():
        instance = call(shop, "start", "waits")
        call(shop, "signal", instance, "w")
    other = call(shop, "start", "waits")
    call(shop, "signal", instance, "w", {"late": True}, signal_id="later")

    def busy(*_: object) -> None:
        raise TooManyRequests("too much to do")

    driver.clock.stop()
    with monkeypatch.context() as patched:
        patched.setattr(driver.engine.instances, "submit_reserved", busy)
        assert await driver.engine.sql_requests.run_once() == 3
    assert await carry_out(driver) == 0, "what is about an instance waits for its start"
    waiting = (await driver.engine.sql_requests.list("WAITING", None, 2)).items
    assert [(each.operation, each.tries, each.instance_id) for each in waiting] == [
        ("start", 1, instance),
        ("signal", 0, instance),
    ]
    page = await driver.engine.sql_requests.list("WAITING", "2", 2)
    assert [each.instance_id for each in page.items] == [other, instance]
    driver.clock.advance(0.6)
    assert await carry_out(driver) == 4
    assert await driver.status(instance) == "COMPLETED"
    assert [(each.operation, each.error) for each in await failed(driver)] == [("signal", "conflict")]
    assert await driver.status(other) == "WAITING"


async def test_a_transaction_may_be_open_across_partitions_and_retention(
    make_driver: MakeDriver, shop: psycopg.Connection[Any]
) -> None:
    driver = make_driver(retention_days=1, partition_days=1)
    await driver.upload(OTHERS)
    retention = Retention(driver.engine)
    await retention.run_once()
    with shop.transaction():
        instance = call(shop, "start", "others", {"n": 1})
        for _ in range(4):
            driver.clock.advance(86_400)
            await retention.run_once()
    assert driver.rows(
        "SELECT count(*) FROM log_partition WHERE parent = 'history' AND since <= %s AND until > %s",
        *[driver.rows("SELECT asked_at FROM sql_request")[0][0]] * 2,
    ) == [(0,)], "the partition of its id is gone"
    assert await carry_out(driver) == 1
    await driver.complete(await driver.one("a"))
    assert await driver.path(instance) == [("a", "COMPLETED"), ("end", "COMPLETED")]


async def test_the_service_waits_for_a_wake_up(driver: Driver, shop: psycopg.Connection[Any]) -> None:
    await driver.upload(OTHERS)
    requests = driver.engine.sql_requests
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(requests.step)
            call(shop, "start", "others")
            requests.hint()
        await requests.step()
    assert driver.rows("SELECT count(*) FROM instance") == [(1,)]


async def test_failed_requests_are_forgotten_after_a_time(driver: Driver, shop: psycopg.Connection[Any]) -> None:
    await driver.upload(ORDERS)
    instance = (await driver.start("orders")).id
    call(shop, "signal", instance, "nothing")
    assert await carry_out(driver) == 1
    chores = partial(driver.engine.sql_requests.chores)
    async with driver.engine.database.connection() as connection:
        await chores(connection)
        assert [each.operation for each in await failed(driver)] == ["signal"]
        assert driver.engine.metrics.sql_requests_failed._value.get() == 1
        driver.clock.advance(31 * 86_400)
        await chores(connection)
    assert await failed(driver) == []
