"""Sessions are terminated by the server in the middle of their COMMITs, for some seconds, under everything at once.

The COMMITs are made long (`commit_delay`), and whoever is in one is ended with `pg_terminate_backend`: the COMMIT takes
effect, is answered or not, and then comes FATAL. What was acknowledged is counted against what is in the database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import psycopg
import pytest
import trio

from penstock.testing.definitions import definition, end, fork, linear, step
from tests.engine.conftest import MakeDriver

STRESS_S = 6.0
STRESS_MAX_S = 120
WINDOW = "options='-c commit_delay=20000 -c commit_siblings=0'"
TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'penstock' AND state = 'active'
  AND (query = 'COMMIT' AND random() < 0.5 OR random() < 0.05)"""


@pytest.mark.slow(reason="ends sessions for seconds")
async def test_sessions_ending_inside_commits_lose_and_double_nothing(
    make_driver: MakeDriver, durable_database_dsn: str
) -> None:
    driver = make_driver(dsn=f"{durable_database_dsn} {WINDOW}", batch_max_items=4)
    looping = definition(
        step("wait", "WAIT", nextStep="choose"),
        step("choose", "DECISION", conditionalNextSteps={"x < 0": "end", "x >= 0": "wait"}), end(),
        definition_id="looping",
    )  # fmt: skip
    for body in (fork(1, 1, job_type="never"), linear(1, definition_id="plain", job_type="never"), linear(2), looping):
        await driver.upload(body)
    loops = [(await driver.start("looping", {"x": 1})).id for _ in range(4)]
    done: Counter[str] = Counter()
    over = trio.Event()

    async def repeat(what: str, operation: Callable[[int], Awaitable[object]]) -> None:
        number = 0
        while not over.is_set():
            number += 1
            await operation(number)
            done[what] += 1

    async def signal(number: int) -> None:
        await driver.signal(loops[number % len(loops)], "wait", {"x": number})

    async def work(number: int) -> None:
        """One instance from its start to its end; a completion that is refused fails the test."""
        view = await driver.start("linear")
        for _ in range(2):
            job = (await driver.poll("work", worker="w", n=1, lease=600) or [None])[0]
            while job is None:
                await trio.sleep(0.02)
                job = (await driver.poll("work", worker="w", n=1, lease=600) or [None])[0]
            await driver.complete(job, {"x": 1}, attempt=job.attempt)
        assert view.id

    async def keyed(number: int) -> None:
        key = f"key {number}"
        first = await driver.start("fork", {"n": number}, idempotency_key=key, business_key="keyed")
        assert (await driver.start("fork", {"n": number}, idempotency_key=key, business_key="keyed")).id == first.id

    async def terminate() -> None:
        with psycopg.connect(durable_database_dsn, autocommit=True) as admin:
            while not over.is_set():
                done["terminated"] += admin.execute(TERMINATE).fetchall()[0][0]
                await trio.sleep(0.03)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(terminate)
        for _ in range(3):
            nursery.start_soon(repeat, "wide", lambda _: driver.start("fork", business_key="wide"))
            nursery.start_soon(repeat, "narrow", lambda _: driver.start("plain"))
            nursery.start_soon(repeat, "signals", signal)
            nursery.start_soon(repeat, "worked", work)
        nursery.start_soon(repeat, "keyed", keyed)
        nursery.start_soon(repeat, "uploads", lambda n: driver.upload(linear(n, definition_id="uploaded")))
        await trio.sleep(STRESS_S)
        with trio.move_on_after(STRESS_MAX_S):  # a busy machine has fewer commits to end a session in
            while done["terminated"] <= 20:
                await trio.sleep(0.1)
        over.set()
    count = lambda sql: int(driver.rows(f"SELECT count(*) FROM {sql}")[0][0])  # noqa: E731
    assert done["terminated"] > 20, done
    found = {
        "wide": count("instance WHERE business_key = 'wide'"),
        "keyed": count("instance WHERE business_key = 'keyed'"),
        "narrow": count("instance i JOIN definition d ON d.key = i.definition WHERE d.id = 'plain'"),
        "signals": count("history h JOIN instance i ON i.id = h.instance_id JOIN definition d ON d.key = i.definition"
                         " WHERE d.id = 'looping' AND h.step = 0"),
        "worked": count("instance WHERE status = 1"),
        "uploads": count("definition WHERE id = 'uploaded'"),
    }  # fmt: skip
    assert found == {name: done[name] for name in found}, done
    assert count("token WHERE state = 1") == 0, "jobs that are leased to nobody"
