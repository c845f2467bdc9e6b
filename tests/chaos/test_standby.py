"""The standby of the attacks: what the verdict takes for acknowledged has to be on it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg
import pytest
import trio

from chaos.failover import Drill
from chaos.server import Server
from tests.chaos.test_short_attack import directory
from tests.waiting import wait_until

__all__ = ["directory"]

CHECKPOINTER = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
ASKED = "SELECT count(*) FROM pg_stat_activity WHERE query = 'CHECKPOINT' AND state = 'active'"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


def commit(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (x int)")


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_a_standby_is_waited_for_once_that_was_said(directory: Path, nursery: trio.Nursery) -> None:
    """A primary that was killed at that moment lost what it had acknowledged: the attack then blamed the engine."""
    primary, standby = Server(directory / "primary"), Server(directory / "standby")
    said = trio.Event()

    async def keep_in_step() -> None:
        await primary.wait_for_standby("standby")
        said.set()

    try:
        await primary.make()
        await standby.follow(primary, "standby")
        with psycopg.connect(primary.dsn("postgres"), autocommit=True) as admin:
            ((checkpointer,),) = admin.execute(CHECKPOINTER).fetchall()

            async def said_or_asked() -> bool:
                return said.is_set() or admin.execute(ASKED).fetchall() == [(1,)]

            async def waits() -> bool:
                return admin.execute(WAITING).fetchall() == [(1,)]

            os.kill(checkpointer, signal.SIGSTOP)  # it tells the sessions that they have to wait
            try:
                nursery.start_soon(keep_in_step)
                await wait_until(said_or_asked)
                too_early = said.is_set()
            finally:
                os.kill(checkpointer, signal.SIGCONT)
            assert not too_early
            with trio.fail_after(60):
                await said.wait()
            standby.pause()
            try:
                async with trio.open_nursery() as committing:
                    committing.start_soon(trio.to_thread.run_sync, commit, primary.dsn("postgres"))
                    await wait_until(waits)
                    standby.resume()
            finally:
                standby.resume()
    finally:
        with trio.CancelScope(shield=True):
            await standby.remove()
            await primary.remove()


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_a_promotion_under_load_loses_nothing(directory: Path) -> None:
    verdict = await Drill(directory, seconds=0.5, engines=1, clients=2).run()
    assert (verdict.lost, verdict.broken) == ([], [])
    assert verdict.done > 0  # what was acknowledged: a start, a report may have been done without an answer
    assert verdict.started > 0
    assert verdict.gap_s > 0
