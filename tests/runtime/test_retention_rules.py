"""Rules of retention: what goes before its partition goes in slices, what stays longer moves to one of its own."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest

from penstock.engine.instances.retention_rules import NEVER_DAYS, RetentionRules, shorter
from penstock.errors import BadRequest, NotFound
from penstock.runtime import archive
from penstock.runtime.retention import EARLY, Retention
from penstock.runtime.service import wrong_settings
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import retention as store
from penstock.testing.definitions import linear
from penstock.testing.invariants import assert_invariants
from tests.runtime.conftest import StartLocal
from tests.runtime.local_engine import LocalEngine
from tests.runtime.test_retention import DAY_S, connection, finished, keeping, partitions

__all__ = ["connection"]  # pytest finds the fixture here

TOO_LONG = """
CREATE FUNCTION too_long() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF (SELECT count(*) FROM gone) > 1 THEN RAISE 'it takes too long' USING ERRCODE = 'query_canceled'; END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER too_long AFTER DELETE ON instance REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION too_long()"""
"""To remove more than one instance at once is too much."""
RULES = ("loan=90", "loan:FAILED=365", "*:CANCELLED=7", "LOS::loan:COMPLETED=never", "brief=0.5")


@pytest.mark.parametrize(
    ("definition", "days"),
    [
        ("loan", (90, 365, 90)),
        ("LOS::loan", (NEVER_DAYS, 30, 7)),
        ("brief", (0.5, 0.5, 0.5)),
        ("other", (30, 30, 7)),
    ],
)
def test_the_rule_that_says_more_counts(definition: str, days: tuple[float, ...]) -> None:
    keeping = RetentionRules(RULES, 30)
    early = tuple(each if each < 30 else NEVER_DAYS for each in days)
    expected = [] if min(early) == NEVER_DAYS else [(1, early)]
    assert shorter(keeping.of({1: definition}), 30) == expected
    assert keeping.days(definition) == days
    assert [kept.days for kept in keeping.of({1: definition})] == [days]
    assert RetentionRules((), 30).of({1: definition}) == []


@pytest.mark.parametrize(
    "rule", ["loan", "=7", "*=7", "loan:ACTIVE=7=", "loan=-1", "loan=soon", "loan=0", "loan=1e9", "loan:FAILED=", ""]
)
def test_an_unreadable_rule_is_told_at_the_start(rule: str) -> None:
    (reported,) = wrong_settings(Settings(retention_rules=(rule,)))
    assert reported.startswith("retention_rules: ")
    with pytest.raises(BadRequest, match="another rule"):
        RetentionRules(("loan=1", "loan=2"), None)


async def ended(engine: LocalEngine, definition: str, *, failed: bool = False) -> str:
    instance = (await engine.start(definition, {"a": 1})).id
    job = await engine.one(definition)
    await (engine.fail(job, retryable=False) if failed else engine.complete(job, {"b": 2}))
    return instance


async def with_definitions(start_local: StartLocal, *ids: str, **settings: object) -> LocalEngine:
    engine = await keeping(start_local, **settings)
    for id in ids:
        await engine.upload(linear(1, definition_id=id, job_type=id))
    return engine


async def run_all(engine: LocalEngine) -> None:
    retention = Retention(engine.engine)
    for _ in range(20):
        if not await retention.run_once():
            return
    raise AssertionError("it does not end")


async def is_there(engine: LocalEngine, instance: str) -> bool:
    try:
        await engine.status(instance)
    except NotFound:
        return False
    return True


async def test_what_goes_early_goes_with_its_history_and_journal(
    start_local: StartLocal, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "WALK_MAX_ROWS", 2)
    monkeypatch.setattr(store, "SLICE_MAX_ROWS", 1)
    engine = await with_definitions(
        start_local, "brief", "other", retention_rules=("brief:COMPLETED=1",), archive_dir=str(tmp_path / "archive")
    )
    gone = [await ended(engine, "brief") for _ in range(3)]
    failed, other = await ended(engine, "brief", failed=True), await ended(engine, "other")
    still_open = (await engine.start("brief")).id
    engine.rows(
        "INSERT INTO journal (instance_id, pos, at, kind, attempt, path)"
        " SELECT id, 1, now(), 1, 1, '/0' FROM instance RETURNING pos"
    )
    engine.clock.advance(0.9 * DAY_S)
    await run_all(engine)
    assert [await is_there(engine, id) for id in gone] == [True] * 3
    engine.clock.advance(0.2 * DAY_S)
    late = await ended(engine, "brief")
    await run_all(engine)
    assert [await is_there(engine, id) for id in (*gone, failed, other, still_open, late)] == [False] * 3 + [True] * 4
    with_history = engine.rows("SELECT id FROM instance WHERE ended_at IS NOT NULL ORDER BY 1")
    assert engine.rows("SELECT DISTINCT instance_id FROM history ORDER BY 1") == with_history
    assert engine.rows("SELECT count(*) FROM journal") == [(3,)]
    found = {each.instance["id"] for each in archive.read(tmp_path / "archive" / EARLY)}
    assert found == {*gone}
    engine.rows("DELETE FROM journal RETURNING 1")  # nobody's runs
    assert_invariants(engine.dsn)


async def test_what_stays_longer_moves_and_the_rest_goes(start_local: StartLocal) -> None:
    engine = await with_definitions(start_local, "kept", retention_days=10, retention_rules=("kept=100",))
    for _ in range(3):
        await finished(engine)
    stays = await ended(engine, "kept")
    still_open = (await engine.start("linear")).id
    [(name, rows)] = [each for each in partitions(engine, "history") if each[1]]
    before = await engine.history(stays)
    engine.clock.advance(40 * DAY_S)
    await run_all(engine)
    found = dict(partitions(engine, "history"))
    assert name not in found
    assert (rows, found[f"{name}_kept"]) == (4, 1)
    assert await engine.history(stays) == before
    await engine.complete(await engine.one("work"), {"late": True})
    assert await engine.variables(still_open) == {"late": True}
    assert dict(partitions(engine, "history"))[f"{name}_kept"] == 2, "it is where its history is written"
    engine.clock.advance(11 * DAY_S)
    await run_all(engine)
    assert [await is_there(engine, id) for id in (stays, still_open)] == [True, False]
    assert dict(partitions(engine, "history"))[f"{name}_kept"] == 1
    assert_invariants(engine.dsn)
    engine.clock.advance(60 * DAY_S)
    await run_all(engine)
    assert not await is_there(engine, stays)
    assert f"{name}_kept" not in dict(partitions(engine, "history"))
    assert engine.rows("SELECT count(*) FROM history") == [(0,)]


async def test_too_much_and_what_is_locked_does_not_move(
    start_local: StartLocal, connection: TrioConnection, database_dsn: str
) -> None:
    settings = {"retention_days": 10, "retention_rules": ("kept=100",), "retention_moved_max_records": 0}
    engine = await with_definitions(start_local, "kept", **settings)
    await ended(engine, "kept")
    engine.clock.advance(40 * DAY_S)
    await run_all(engine)
    [partition] = await store.over(connection, "history", 10)
    assert (partition.moved, engine.rows("SELECT count(*) FROM history")) == (False, [(1,)])
    held = engine.engine.polls.activity.overdue
    assert held is not None
    with psycopg.connect(database_dsn) as writer:
        writer.execute("UPDATE history SET reason = 'looked at'")
        assert await store.move_kept(connection, partition, 1) is False
    assert await store.move_kept(connection, partition, 0) is None
    assert await store.move_kept(connection, partition, 1) is True
    [moved] = await store.over(connection, "history", 10)
    assert (moved.name, moved.moved) == (f"{partition.name}_kept", True)
    assert await store.move_kept(connection, moved, 1) is False, "once"


async def test_those_who_are_kept_are_not_walked_over_every_minute(
    start_local: StartLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await with_definitions(start_local, "kept", retention_days=10, retention_rules=("kept=100",))
    await finished(engine)
    stays = await ended(engine, "kept")
    engine.clock.advance(40 * DAY_S)
    retention = Retention(engine.engine)
    for _ in range(3):  # removed, and moved; then what is left is looked at
        await retention.run_once()
    held = engine.engine.polls.activity.overdue
    assert held is not None
    assert (held.instances, held.oldest) == (1, int(stays, 16))
    probes: list[str] = []

    async def probe(_: object, partition: store.Partition, *_rest: object) -> list[int]:
        probes.append(partition.name)
        return []

    monkeypatch.setattr(store, "retired", probe)
    await retention.run_once()
    assert probes == []
    assert engine.engine.polls.activity.overdue == held, "it is told all the same"
    await Retention(engine.engine).run_once()
    assert len(probes) == 1


async def test_what_takes_too_long_to_remove_goes_in_halves(
    start_local: StartLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SLICE_MAX_ROWS", 2)
    engine = await with_definitions(start_local, "kept", retention_days=10, retention_rules=("kept=100",))
    stay = [await ended(engine, "kept") for _ in range(3)]
    engine.clock.advance(40 * DAY_S)
    await run_all(engine)
    assert [partition for partition, rows in partitions(engine, "history") if rows == 3]
    with psycopg.connect(engine.dsn) as connection:
        connection.execute(TOO_LONG)
    tried: list[int] = []
    remove = store.remove_with_history

    async def watched(connection: TrioConnection, ids: Sequence[int]) -> tuple[list[int], int] | None:
        tried.append(len(ids))
        return await remove(connection, ids)

    monkeypatch.setattr(store, "remove_with_history", watched)
    engine.clock.advance(70 * DAY_S)
    await run_all(engine)
    assert [await is_there(engine, id) for id in stay] == [False] * 3
    assert tried == [2, 1, 1, 1]
