"""Instances are in files, whole, before retention removes them; what can't be written is not removed."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.errors import NotFound
from penstock.runtime import archive, parquet
from penstock.runtime.retention import Retention
from penstock.settings import ArchiveFormat
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import archive as store
from penstock.store.rows import retention
from penstock.testing.definitions import definition, end
from penstock.testing.invariants import assert_invariants
from penstock.wire.edits import VariablesEdit
from tests.runtime.conftest import StartLocal
from tests.runtime.local_engine import LocalEngine
from tests.runtime.test_retention import DAY_S, finished, keeping
from tests.shapes import user


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "archive"


async def removed(engine: LocalEngine) -> bool:
    """Let the retention pass; whether all that had ended is gone."""
    engine.clock.advance(40 * DAY_S)
    while await Retention(engine.engine).run_once():
        pass
    return engine.rows("SELECT count(*) FROM instance WHERE ended_at IS NOT NULL") == [(0,)]


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


async def test_what_is_removed_was_archived_with_its_history(
    start_local: StartLocal, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PIECE_ROWS", 1)
    engine = await keeping(start_local, retention_days=10, archive_dir=str(directory))
    ids = [await finished(engine) for _ in range(3)]
    still_open = (await engine.start("linear")).id
    before: list[Any] = [
        engine.rows("SELECT row_to_json(i) FROM penstock_instances i WHERE id = %s", id)[0][0] for id in ids
    ]
    assert await removed(engine)
    with pytest.raises(NotFound):
        await engine.status(ids[0])
    (file,) = files(directory)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    found = {each.instance["id"]: each for each in archive.read(directory)}
    assert found.keys() == {*ids}
    for each in before:
        kept = found[each["id"]]
        assert kept.instance | {"age": None} == each | {"age": None, "start_variables": {"a": 1}}
        assert kept.instance["variables"] == {"a": 1, "b": 2}
        steps = [line["step"] for line in kept.lines]
        assert [(step["step"], step["status"]) for step in steps] == [("task-1", "COMPLETED"), ("end", "COMPLETED")]
        assert steps[0]["output"] == {"b": 2}
    assert await engine.status(still_open) == "ACTIVE"
    assert_invariants(engine.dsn)


async def test_what_an_instance_was_started_with_is_archived_though_it_was_edited(
    start_local: StartLocal, directory: Path
) -> None:
    engine = await keeping(start_local, retention_days=10, archive_dir=str(directory))
    await engine.upload(definition(user("ask"), end(), definition_id="asks"))
    id = (await engine.start("asks", {"amount": 1})).id
    for amount in (b"2", b"3"):
        await engine.engine.repair.edit_variables(id, VariablesEdit(set=msgspec.Raw(b'{"amount": %s}' % amount)))
    await engine.finish_task(id, "ask", {"asked": True})
    assert await removed(engine)
    (kept,) = archive.read(directory)
    assert kept.instance["variables"] == {"amount": 3, "asked": True}
    assert kept.instance["start_variables"] == {"amount": 1}


async def test_a_runs_journal_is_archived_with_it(start_local: StartLocal, directory: Path) -> None:
    engine = await keeping(start_local, retention_days=10, archive_dir=str(directory))
    id = await finished(engine)
    engine.rows(
        "INSERT INTO journal (instance_id, pos, at, kind, attempt, path, payload)"
        f" SELECT {int(id, 16)}, n, now(), 1, 1, '/' || n, '7' FROM generate_series(1, 3) AS n RETURNING pos"
    )
    assert await removed(engine)
    (kept,) = archive.read(directory)
    assert [line["record"]["path"] for line in kept.lines if "record" in line] == ["/1", "/2", "/3"]


async def test_what_can_not_be_written_is_not_removed(start_local: StartLocal, directory: Path) -> None:
    directory.parent.mkdir(parents=True)
    directory.write_text("a file where the directory should be")
    engine = await keeping(start_local, retention_days=10, archive_dir=str(directory))
    id = await finished(engine)
    assert not await removed(engine)
    assert await engine.status(id) == "COMPLETED"
    directory.unlink()
    assert await removed(engine)
    assert [each.instance["id"] for each in archive.read(directory)] == [id]


async def test_an_unfinished_file_is_left_nowhere(
    start_local: StartLocal, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await keeping(start_local, retention_days=10, archive_dir=str(directory))
    await finished(engine)

    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "_finish", full)
    assert not await removed(engine)
    assert files(directory) == []


async def test_what_another_engine_removes_meanwhile_leaves_no_half_of_it(
    start_local: StartLocal, directory: Path, database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await keeping(start_local, retention_days=10, archive_dir=str(directory))
    ids = [await finished(engine) for _ in range(2)]
    lines_of = store.lines_of
    async with await TrioConnection.connect(database_dsn) as other:

        async def outrun(connection: TrioConnection, instance: retention.Selected) -> AsyncGenerator[list[str]]:
            async for lines in lines_of(connection, instance):
                yield lines
                await retention.remove_with_history(other, [instance])

        monkeypatch.setattr(store, "lines_of", outrun)
        assert await removed(engine)
    for id in ids:
        with pytest.raises(NotFound):
            await engine.status(id)
    assert files(directory) == [], "who removed them has archived them"


async def test_of_one_that_was_archived_twice_the_latest_counts(
    start_local: StartLocal, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await keeping(start_local, retention_days=10, archive_dir=str(directory))
    id = await finished(engine)
    retention = Retention(engine.engine)

    async def others_turn(*_: object, **__: object) -> None:
        return None

    with monkeypatch.context() as patched:
        patched.setattr(retention, "_remove", others_turn)
        engine.clock.advance(40 * DAY_S)
        await retention.run_once()
    engine.rows("UPDATE instance SET business_key = 'later' RETURNING 1")
    assert await removed(engine)
    assert len(files(directory)) == 2
    shown = CliRunner().invoke(app, ["archive", "show", str(directory), id])
    assert json.loads(shown.stdout)["instance"]["business_key"] == "later"


async def test_commands_read_the_archive(start_local: StartLocal, directory: Path) -> None:
    engine = await keeping(start_local, retention_days=10, archive_dir=str(directory))
    ids = [await finished(engine) for _ in range(2)]
    assert await removed(engine)

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["archive", arguments[0], str(directory), *arguments[1:]])
        return result.exit_code, result.stdout

    code, listed = run("list", "--definition", "linear", "--status", "completed", "--json")
    assert (code, [json.loads(line)["id"] for line in listed.splitlines()]) == (0, ids)
    assert run("list", "--definition", "other", "--json") == (0, "")
    assert [line.split()[0] for line in run("list")[1].splitlines()] == ["id", *ids]
    code, shown = run("show", ids[1])
    reported = json.loads(shown)
    assert (code, reported["instance"]["id"], [step["step"] for step in reported["steps"]]) == (
        0,
        ids[1],
        ["task-1", "end"],
    )
    assert run("show", "77")[0] == 1
    (file,) = files(directory)
    file.write_bytes(gzip.compress(b'{"instance": {"id": '))
    assert run("list")[0] == 1


@pytest.mark.slow(reason="writes and reads a whole archive")
async def test_as_parquet_the_archive_says_the_same(
    start_local: StartLocal, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table: Any = pytest.importorskip("pyarrow.parquet", reason="the extra `parquet` is not installed")
    monkeypatch.setattr(parquet, "GROUP_MAX_ROWS", 3)
    settings = {"retention_days": 10, "archive_dir": str(directory), "archive_format": ArchiveFormat.PARQUET}
    engine = await keeping(start_local, **settings)
    ids = [await finished(engine) for _ in range(3)]
    engine.rows(
        "INSERT INTO journal (instance_id, pos, at, kind, attempt, path, payload)"
        f" VALUES ({int(ids[0], 16)}, 1, now(), 1, 1, '/1', '7') RETURNING pos"
    )
    assert await removed(engine)
    (file,) = files(directory)
    assert (file.suffix, file.stat().st_mode & 0o777) == (".parquet", 0o600)
    rows = table.read_table(file).to_pylist()
    assert [(row["instance"], row["kind"], row["step"]) for row in rows[:4]] == [
        (ids[0], "instance", None),
        (ids[0], "step", "task-1"),
        (ids[0], "step", "end"),
        (ids[0], "record", None),
    ]
    assert {(row["definition"], row["version"], row["status"]) for row in rows if row["kind"] == "instance"} == {
        ("linear", 1, "COMPLETED")
    }
    assert all(row["ended_at"] >= row["started_at"] for row in rows if row["kind"] != "record")
    shown = json.loads(CliRunner().invoke(app, ["archive", "show", str(directory), ids[0]]).stdout)
    assert shown["instance"]["variables"] == {"a": 1, "b": 2}
    assert [step["output"] for step in shown["steps"]] == [{"b": 2}, None]
    assert [record["path"] for record in shown["journal"]] == ["/1"]
    listed = CliRunner().invoke(app, ["archive", "list", str(directory), "--json"]).stdout
    assert [json.loads(line)["id"] for line in listed.splitlines()] == ids
    for options, zone in ((["--utc"], r"Z"), ([], r"(Z|[+-]\d\d:\d\d)")):
        table = CliRunner().invoke(app, [*options, "archive", "list", str(directory)]).stdout
        assert len(re.findall(rf" \d\d:\d\d:\d\d{zone} ", table)) == len(ids)
    file.write_bytes(b"PAR1 no more")
    reported = CliRunner().invoke(app, ["archive", "list", str(directory)])
    assert (reported.exit_code, "is damaged" in reported.stderr) == (1, True)
