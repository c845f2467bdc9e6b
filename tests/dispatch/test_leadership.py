"""Who publishes: one engine at a time, whatever becomes of the one that does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import psycopg
import pytest
import trio

from penstock.kafka import leadership
from penstock.kafka.leadership import Leadership
from penstock.store.db.database import AWAY, Database
from tests.store.proxy import Proxy
from tests.waiting import wait_until

MakeCandidate = Callable[..., "Candidate"]
EARNEST = {name: getattr(leadership, name) for name in ("IDLE_TIMEOUT_S", "TRUST_S")}


class Candidate(Leadership):
    """One engine's candidacy, as its runtime would run it; ``changes`` is what it was told."""

    def __init__(self, dsn: str) -> None:
        self.database = Database(dsn, max_connections=1)
        self.changes: list[bool] = []
        self.scope = trio.CancelScope()
        super().__init__(self.database, self.changes.append)

    async def serve(self) -> None:
        with self.scope:
            while True:
                try:
                    await self.step()
                except AWAY:
                    with trio.move_on_after(0.02):
                        await trio.sleep_forever()

    async def wait_elected(self) -> None:
        with trio.fail_after(60):
            await self.wait_leading()


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no leader loses its session, or its trust in it, because this machine is slow."""
    for name in ("IDLE_TIMEOUT_S", "TRUST_S"):
        monkeypatch.setattr(leadership, name, 600.0)


def be_hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a leader that is not heard of is given up ten times as soon as in earnest."""
    for name in ("IDLE_TIMEOUT_S", "TRUST_S"):
        monkeypatch.setattr(leadership, name, EARNEST[name] / 10)


@pytest.fixture
async def candidate(
    database_dsn: str, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[MakeCandidate]:
    """Makes candidates that ask ten times as often as real ones, and are patient."""
    for name in ("PING_INTERVAL_S", "TRY_INTERVAL_S"):
        monkeypatch.setattr(leadership, name, getattr(leadership, name) / 10)
    be_patient(monkeypatch)
    made: list[Candidate] = []

    def make(dsn: str = database_dsn) -> Candidate:
        made.append(Candidate(dsn))
        nursery.start_soon(made[-1].serve)
        return made[-1]

    yield make
    for one in made:
        one.scope.cancel()
        await one.database.close(1)


def sessions(dsn: str) -> list[int]:
    """The backends that hold the lock of the relay."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1885697139 AND objid = 4294967293"
            " AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return [pid for (pid,) in rows.fetchall()]


async def test_one_of_several_leads_and_the_others_wait(candidate: MakeCandidate, database_dsn: str) -> None:
    first = candidate()
    await first.wait_elected()
    others = [candidate(), candidate()]
    with trio.move_on_after(5 * leadership.TRY_INTERVAL_S):
        await others[0].wait_leading()
    assert [other.leads() for other in others] == [False, False]
    assert (first.leads(), first.changes) == (True, [True])
    assert len(sessions(database_dsn)) == 1


async def test_the_next_one_leads_soon_after_the_leader_has_ended(candidate: MakeCandidate) -> None:
    first = candidate()
    await first.wait_elected()
    second = candidate()
    first.scope.cancel()
    await second.wait_elected()
    assert (first.leads(), first.changes) == (False, [True, False])


async def test_a_leader_whose_session_ended_notices_and_is_elected_again(
    candidate: MakeCandidate, database_dsn: str
) -> None:
    first = candidate()
    await first.wait_elected()
    (pid,) = sessions(database_dsn)
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", (pid,))

    async def elected_again() -> bool:
        return first.changes == [True, False, True] and first.leads()

    await wait_until(elected_again)
    assert sessions(database_dsn) != [pid]


async def test_a_cut_off_leader_stops_before_another_can_lead(
    candidate: MakeCandidate, database_dsn: str, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(database_dsn)
    await nursery.start(proxy.serve)
    be_hasty(monkeypatch)
    first = candidate(proxy.dsn)
    await first.wait_elected()
    second = candidate()
    both: list[bool] = []
    second._on_change = lambda _: both.append(first.leads())
    proxy.hold_new = True
    for link in proxy.links:
        link.hold()  # it goes on sending, and hears nothing: as stopped or unreachable as a process can be
    assert first.leads()
    await second.wait_elected()
    assert both[0] is False
    assert not first.leads()
    nursery.cancel_scope.cancel()


async def test_the_server_ends_the_session_of_a_stalled_leader(
    candidate: MakeCandidate, database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SIGSTOP does: the connection stays open, and nothing comes over it."""

    async def silence(_: object) -> None:
        await trio.sleep_forever()

    be_hasty(monkeypatch)
    first = candidate()
    monkeypatch.setattr(first, "_check_answered", silence)  # a leader's next sign of life never comes

    async def elected() -> bool:
        return first.changes == [True]

    await wait_until(elected)
    be_patient(monkeypatch)
    second = candidate()
    assert not second.leads()
    await second.wait_elected()
    assert not first.leads()
    assert first.changes == [True]  # nobody told it
    assert len(sessions(database_dsn)) == 1


async def test_nobody_leads_without_having_been_elected(candidate: MakeCandidate, database_dsn: str) -> None:
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(1885697139, -3)")
        waiting = candidate()
        with trio.move_on_after(5 * leadership.TRY_INTERVAL_S) as scope:
            await waiting.wait_leading()
        assert scope.cancelled_caught
    await waiting.wait_elected()
