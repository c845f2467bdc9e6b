"""Runs that go on as new ones: their journals are freed, what is kept comes first, and nobody else may do it."""

from __future__ import annotations

import pytest

from penstock.errors import JournalTooLong, LeaseLost, PayloadTooLarge
from penstock.testing.invariants import find_broken
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.runs import HOLDER, append, begin, continue_as_new, done, finish, read, take

BEGUN = '{"arguments":{"n":2},"continuation":1}'


async def test_the_journal_is_that_of_the_new_run(driver: Driver) -> None:
    run = await begin(driver)
    answer = await append(driver, run.run_lease, *(done(f"/{n}") for n in range(100)))
    for name in ("go", "stop", "go"):
        await driver.engine.runs.send(run.instance_id, name, b'"now"')
    assert not await continue_as_new(driver, run.run_lease, BEGUN), "there is mail"
    assert driver.rows("SELECT count(*) FROM journal") == [(103,)]
    first, _, last = (await read(driver, run.run_lease, answer.placed[-1].pos)).records
    for _ in range(2):  # as when the answer was lost
        assert await continue_as_new(driver, run.run_lease, BEGUN, mail=3, kept=[first.pos, last.pos])
        page = await read(driver, run.run_lease)
        assert [(r.kind, r.name, r.payload) for r in page.records] == [(10, "1", BEGUN), *[(6, "go", '"now"')] * 2]
        assert page.mail == 2
    assert find_broken(driver.dsn) == []
    assert driver.rows("SELECT count(*) FROM journal") == [(3,)], "rows of the former run are freed"
    last_pos = (await read(driver, run.run_lease)).records[-1].pos
    await append(driver, run.run_lease, done("/0"), after=last_pos, mail=2)
    assert await driver.engine.journal.park(run.run_lease, mail=2, due_at=None)
    with pytest.raises(LeaseLost):
        await continue_as_new(driver, run.run_lease, BEGUN, name="2", mail=3)
    await driver.engine.runs.send(run.instance_id, "go", b"1")
    [again] = await take(driver)
    assert again.page is not None
    assert [record.kind for record in again.page.records] == [10, 6, 6, 1, 6]
    for held in (run.run_lease, again.run_lease._replace(holder=f"{HOLDER}0"), again.run_lease._replace(attempt=3)):
        with pytest.raises(LeaseLost):
            await continue_as_new(driver, held, BEGUN, name="2", mail=3)
    assert await continue_as_new(driver, again.run_lease, BEGUN, name="2", mail=3)
    assert await finish(driver, again.run_lease)


async def test_a_new_run_may_have_as_many_records(make_driver: MakeDriver) -> None:
    driver = make_driver(journal_max_records=10, payload_max_bytes=1_000)
    run = await begin(driver)
    await append(driver, run.run_lease, *(done(f"/{n}") for n in range(10)))
    with pytest.raises(JournalTooLong):
        await append(driver, run.run_lease, done("/10"))
    with pytest.raises(PayloadTooLarge):
        await continue_as_new(driver, run.run_lease, '"' + "x" * 4_000 + '"')
    assert await continue_as_new(driver, run.run_lease, BEGUN)
    await read(driver, run.run_lease)
    await append(driver, run.run_lease, *(done(f"/{n}") for n in range(9)))
