"""Retention selects, archives and deletes in three transactions: what changes between stays, and is archived later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from penstock.errors import NotFound
from penstock.runtime import archive
from penstock.runtime.retention import Retention
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import retention as store
from penstock.testing.definitions import linear
from penstock.testing.invariants import assert_invariants
from penstock.wire.edits import MigrationRequest, VariablesEdit
from tests.engine.driver import number
from tests.runtime.conftest import StartLocal, start_local
from tests.runtime.local_engine import LocalEngine
from tests.runtime.test_retention import DAY_S, keeping
from tests.shares import mostly_slow

__all__ = ["start_local"]

Change = Callable[[LocalEngine, str], Awaitable[object]]

DAY = timedelta(days=1)
WAYS: dict[str, dict[str, Any]] = {
    "partition": {"retention_days": 10},
    "early": {"retention_rules": ("linear=10",)},
    "kept": {"retention_days": 5, "retention_rules": ("linear=10",)},
}


async def complete(engine: LocalEngine, instance: str) -> None:
    await engine.retry(instance)
    await engine.complete(await engine.one("work"), {"b": 2})


async def fail(engine: LocalEngine, instance: str) -> None:
    await engine.retry(instance)
    await engine.fail(await engine.one("work"), "again", retryable=False)


async def cancel(engine: LocalEngine, instance: str) -> None:
    await engine.retry(instance)
    await engine.cancel(instance)


async def reopen(engine: LocalEngine, instance: str) -> None:
    await engine.retry(instance)


async def edit(engine: LocalEngine, instance: str) -> None:
    await engine.engine.repair.edit_variables(instance, VariablesEdit(set=msgspec.Raw(b'{"a":7}')))


async def migrate(engine: LocalEngine, instance: str) -> None:
    await engine.upload(linear(2))
    await engine.engine.migrations.migrate(instance, MigrationRequest(version=2))


async def failed(engine: LocalEngine) -> str:
    instance = (await engine.start("linear", {"a": 1})).id
    await engine.fail(await engine.one("work"), "boom", retryable=False)
    return instance


async def round_with(engine: LocalEngine, change: Change, instance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of retention; the instance changes when its file is on the disk."""
    write = archive.write

    async def then_change(*arguments: Any, **named: Any) -> Path:
        path = await write(*arguments, **named)
        if not changed:
            changed.append(instance)
            await change(engine, instance)
        return path

    changed: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(archive, "write", then_change)
        await Retention(engine.engine).run_once()


async def is_gone(engine: LocalEngine, instance: str) -> bool:
    try:
        await engine.status(instance)
    except NotFound:
        return True
    return False


CHANGES = [*product([complete, fail, cancel, reopen, edit, migrate], WAYS)]


@pytest.mark.parametrize(
    ("change", "way"),
    mostly_slow(CHANGES, quick=CHANGES[::4], reason="a round of retention for each change"),
    ids=[f"{change.__name__}-{way}" for change, way in CHANGES],
)
async def test_what_changes_behind_its_archive_stays_with_all_it_has(
    start_local: StartLocal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, way: str
) -> None:
    engine = await keeping(start_local, archive_dir=str(tmp_path), **WAYS[way])
    gone, instance = [await failed(engine) for _ in range(2)]
    engine.clock.advance(40 * DAY_S)
    await round_with(engine, change, instance, monkeypatch)
    assert await is_gone(engine, gone)
    view, history = await engine.view(instance), await engine.history(instance)
    if change in (fail, edit, migrate):
        assert view.status == "FAILED"
        await complete(engine, instance)
    elif change is reopen:
        await engine.complete(await engine.one("work"))
    assert "FAILED" in [step.status for step in history]
    if change is migrate:
        await engine.complete(await engine.one("work"))
    status = await engine.status(instance)
    engine.clock.advance(40 * DAY_S)
    while await Retention(engine.engine).run_once():
        pass
    assert await is_gone(engine, instance)
    latest = {each.instance["id"]: each for each in archive.read(tmp_path)}
    assert latest.keys() == {gone, instance}
    assert latest[instance].instance["status"] == status
    assert [line["step"]["status"] for line in latest[instance].lines].count("FAILED") >= 1
    assert_invariants(engine.dsn)


async def test_what_changes_before_its_archive_is_in_no_file(
    start_local: StartLocal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await keeping(start_local, archive_dir=str(tmp_path), retention_days=10)
    instance = await failed(engine)
    engine.clock.advance(40 * DAY_S)
    retired = store.retired

    async def then_complete(*arguments: Any) -> list[Any]:
        found = await retired(*arguments)
        if found and await engine.status(instance) == "FAILED":
            await complete(engine, instance)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(store, "retired", then_complete)
        await Retention(engine.engine).run_once()
    assert await engine.status(instance) == "COMPLETED"
    assert list(archive.read(tmp_path)) == []


async def test_a_change_that_commits_while_it_is_deleted_counts(start_local: StartLocal, database_dsn: str) -> None:
    engine = await keeping(start_local, retention_days=10)
    instance = (await engine.start("linear", {"a": 1})).id
    await engine.complete(await engine.one("work"))
    everything = store.Partition("p", engine.clock.now() - 10 * DAY, engine.clock.now() + DAY)
    engine.clock.advance(40 * DAY_S)
    async with (
        await TrioConnection.connect(database_dsn) as one,
        await TrioConnection.connect(database_dsn) as other,
        trio.open_nursery() as nursery,
    ):
        selected = await store.retired(one, everything, 10, -1)
        assert [each.id for each in selected] == [number(instance)]
        async with other.transaction():
            await other.fetch("UPDATE instance SET business_key = 'later' RETURNING 1")

            async def remove() -> None:
                assert await store.remove_with_history(one, selected) == ([], 0)

            nursery.start_soon(remove)
            while not engine.waiting_for_locks():
                await trio.sleep(0.001)
    assert await engine.status(instance) == "COMPLETED"
    assert len(await engine.history(instance)) == 2


async def test_a_partition_with_an_instance_is_not_dropped(start_local: StartLocal, database_dsn: str) -> None:
    engine = await keeping(start_local, retention_days=10)
    instance = await failed(engine)
    engine.clock.advance(40 * DAY_S)
    [(started_at,)] = engine.rows("SELECT started_at FROM instance")
    async with await TrioConnection.connect(database_dsn) as connection:
        for parent in ("history", "journal"):
            for partition in await store.over(connection, parent, 10):
                holds_it = partition.since <= started_at < partition.until
                assert await store.drop(connection, partition) is not holds_it
    assert await engine.status(instance) == "FAILED"
    assert len(await engine.history(instance)) == 1
