"""`penstock doctor`: each look at what is well and what is not, and all of them at a real database."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
from typer.testing import CliRunner

from penstock import __version__
from penstock.cli.app import app
from penstock.http import reserved_ports
from penstock.runtime import doctor
from penstock.runtime.doctor import CheckLevel, DoctorFinding
from penstock.settings import Secret, Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.schema import SCHEMA_VERSION
from penstock.store.rows import checkup
from penstock.store.rows.activity import KnownEngine
from penstock.store.rows.checkup import Holdup, Log, ServerFacts, Table
from penstock.testing.postgres import PostgresServer, apply_schema

PROBLEM, ADVICE, OK = CheckLevel.PROBLEM, CheckLevel.ADVICE, CheckLevel.OK
GOOD = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "autovacuum": "on",
    "max_connections": "100",
    "superuser_reserved_connections": "3",
    "shared_buffers": "65536",
    "max_wal_size": "4096",
    "client_connection_check_interval": "5000",
    "synchronous_standby_names": "",
}


def server(*, settings: dict[str, str] | None = None, **changes: Any) -> ServerFacts:
    plain = ServerFacts(180_000, "18.0", "UTF8", False, 0.0, GOOD | (settings or {}), 5, 0, 1_000, 1)
    return plain._replace(**changes)


def verdicts(findings: Iterable[DoctorFinding]) -> list[tuple[CheckLevel, str]]:
    return [(each.verdict, each.subject) for each in findings]


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (server(), []),
        (server(version_number=140_009), [(PROBLEM, "database")]),
        (server(encoding="LATIN1"), [(PROBLEM, "database")]),
        (server(in_recovery=True), [(PROBLEM, "database")]),
        (server(settings={"fsync": "off"}), [(PROBLEM, "durability")]),
        (server(settings={"synchronous_commit": "off"}), [(PROBLEM, "durability")]),
        (server(settings={"synchronous_standby_names": "a"}), [(PROBLEM, "durability")]),
        (server(settings={"synchronous_standby_names": "a"}, synchronous_standbys=1), []),
        (server(settings={"autovacuum": "off"}), [(PROBLEM, "autovacuum")]),
        (server(oldest_transaction_age=1_500_000_000), [(PROBLEM, "autovacuum")]),
        (server(settings={"shared_buffers": "16384"}), [(ADVICE, "memory")]),
        (server(settings={"max_wal_size": "1024"}), [(ADVICE, "checkpoints")]),
        (server(settings={"client_connection_check_interval": "0"}), [(ADVICE, "sessions")]),
    ],
)
def test_what_a_server_lacks_is_reported(changed: ServerFacts, found: list[tuple[CheckLevel, str]]) -> None:
    reported = verdicts(doctor.check_server(changed))
    assert [each for each in reported if each != (OK, "database")] == found
    assert ((OK, "database") in reported) == ((PROBLEM, "database") not in reported)


@pytest.mark.parametrize(
    ("number", "version", "defect"),
    [(170_010, "17.10", False), (180_000, "18.0", True), (180_005, "18.5", True), (180_006, "18.6", False)],
)
def test_the_defect_of_rechecks_is_reported(number: int, version: str, defect: bool) -> None:
    (found,) = doctor.check_server(server(version_number=number, version=version))
    assert found.verdict is OK
    assert found.found.startswith(f"PostgreSQL {version}")
    assert ("recheck" in found.found) == defect


@pytest.mark.parametrize(
    ("sessions", "own", "settings", "verdict"),
    [
        (5, 1, Settings(), OK),
        (90, 1, Settings(), ADVICE),
        (90, 89, Settings(), OK),
        (5, 1, Settings(processes=9), PROBLEM),
    ],
)
def test_connections_are_counted_against_the_settings(
    sessions: int, own: int, settings: Settings, verdict: CheckLevel
) -> None:
    """The sessions of engines that run already, which are those of their own database, count once."""
    found = list(doctor.check_connections(server(sessions=sessions, own_sessions=own), settings))
    assert verdicts(found) == [(verdict, "connections")]
    assert f"{own} of them in this database" in found[0].found or verdict is PROBLEM


def test_clocks_that_differ_are_reported() -> None:
    assert doctor.check_clock(100.0, 100.4).verdict is OK
    assert doctor.check_clock(100.0, 102.0).verdict is ADVICE


@pytest.mark.parametrize(
    ("version", "verdict"),
    [(0, ADVICE), (SCHEMA_VERSION - 1, ADVICE), (SCHEMA_VERSION, OK), (SCHEMA_VERSION + 1, PROBLEM)],
)
def test_schema_versions_are_judged(version: int, verdict: CheckLevel) -> None:
    assert doctor.check_schema(version).verdict is verdict


def test_what_keeps_dead_rows_alive_is_named() -> None:
    young, old = Holdup("transaction of a", 5.0, None), Holdup("transaction of b", 500.0, None)
    slots = [
        Holdup("replication slot s", None, 10, 7_000_000_000),
        Holdup("replication slot t", None, 9_000_000, 9_100_000_000),
        Holdup("replication slot new", None, None, None),
    ]
    found = [each.found for each in doctor.check_holdups([young, old, *slots])]
    assert found == [
        "transaction of b is open for 500 s",
        "replication slot t is 9,000,000 transactions behind",
        "replication slot t keeps 9.1 GB of WAL on the database's disk",
    ]


def table(name: str = "token", **changes: Any) -> Table:
    return Table(name, True, True, 10, 0, 8_192)._replace(**changes)


def test_rights_that_lack_are_named() -> None:
    tables = [table("audit", owned=False), table("token", may_write=False)]
    assert verdicts(doctor.check_rights([table()], may_create=True)) == [(OK, "rights")]
    assert verdicts(doctor.check_rights(tables, may_create=True)) == [(PROBLEM, "rights"), (ADVICE, "rights")]
    assert verdicts(doctor.check_rights([table()], may_create=False)) == [(ADVICE, "rights")]


def test_bloat_is_told_of_hot_tables() -> None:
    swollen = table("ready", dead_rows=3_000_000)
    tables = [table(), table(dead_rows=90_000), table("history", dead_rows=9_000_000), swollen]
    assert verdicts(doctor.check_bloat(tables)) == [(ADVICE, "bloat")]


def test_partitions_are_looked_at() -> None:
    logs = [Log("history", None, False), Log("journal", 86_400.0, True), Log("audit", 86_400.0, False)]
    assert [each.found for each in doctor.check_logs(logs)] == [
        "history has no partition for today",
        "journal_other holds rows",
    ]


def test_engines_that_disagree_are_named() -> None:
    alive = KnownEngine(1, "polling", "a", SCHEMA_VERSION, 9.0, None)
    others = [
        KnownEngine(2, "kafka_outbox", "b", SCHEMA_VERSION, 9.0, None),
        KnownEngine(3, "polling", "c", SCHEMA_VERSION - 1, 9.0, None),
        KnownEngine(4, "kafka_outbox", "gone", SCHEMA_VERSION, -9.0, None),
    ]
    found = list(doctor.check_engines([alive, *others], Settings()))
    assert verdicts(found) == [(OK, "engines"), (PROBLEM, "engines"), (ADVICE, "engines")]
    assert found[0].found == "3 live, a, b, c"


def run(dsn: str, *arguments: str, **environment: str) -> tuple[int, list[dict[str, str]]]:
    made = CliRunner().invoke(app, ["doctor", "--json", *arguments], env={"WE_POSTGRES_DSN": dsn, **environment})
    return made.exit_code, json.loads(made.stdout)


def test_a_database_is_examined_and_not_changed(postgres_server: PostgresServer) -> None:
    with postgres_server.database() as dsn:
        code, found = run(dsn)
        schema = next(each for each in found if each["subject"] == "schema")
        assert (schema["verdict"], "no tables" in schema["found"]) == ("advice", True)
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT to_regclass('penstock.token') IS NULL").fetchone() == (True,)
    # whatever the settings of the test's server are, they are no problem of this test
    assert code == int(any(each["verdict"] == "problem" for each in found))


def test_a_cut_off_index_and_old_locks_are_found(postgres_server: PostgresServer) -> None:
    with postgres_server.database(apply_schema) as dsn, psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'timer_due'::regclass")
        code, found = run(dsn)
        assert code == 1
        reported = {(each["subject"], each["verdict"]): each for each in found}
        assert reported["indexes", "problem"]["todo"] == "REINDEX INDEX CONCURRENTLY timer_due"
        assert reported["schema", "ok"]["found"] == f"version {SCHEMA_VERSION}"
        assert reported["rights", "ok"]
        assert reported["pooler", "ok"]
        assert reported["engines", "ok"]["found"] == "0 live"
        admin.execute("REINDEX INDEX timer_due")
        _, again = run(dsn)
        assert not [each for each in again if each["subject"] == "indexes"]


def test_what_is_away_is_a_finding() -> None:
    with reserved_ports(2) as (database, broker):
        code, found = run(
            f"postgresql://nobody@127.0.0.1:{database}/none",
            WE_DISPATCH_MODE="kafka_outbox",
            WE_KAFKA_SEED_BROKERS=f"127.0.0.1:{broker}",
        )
    assert code == 1
    *away, this = found
    reported = [("database", "problem"), ("disk", "ok"), ("broker", "problem")]
    assert [(each["subject"], each["verdict"]) for each in away] == reported
    assert (this["subject"], this["verdict"], this["found"]) == ("penstock", "ok", __version__)


def test_a_data_directory_of_another_version_is_a_finding(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "data" / "12").mkdir(parents=True)
    (tmp_path / "data" / "12" / "PG_VERSION").write_text("12")
    made = CliRunner().invoke(
        app, ["doctor", "--json", "--data-dir", str(tmp_path / "data")], env={"WE_POSTGRES_DSN": ""}
    )
    found = [each for each in json.loads(made.stdout) if each["verdict"] == "problem"]
    assert (made.exit_code, [each["subject"] for each in found]) == (1, ["database"])
    assert str(tmp_path) in found[0]["found"]


@pytest.mark.parametrize("options", [["--data-dir", "given"], []])
def test_where_no_database_is_none_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"WE_POSTGRES_DSN": "", "WE_DATA_DIR": "", "XDG_DATA_HOME": str(tmp_path / "home")}
    made = CliRunner().invoke(app, ["doctor", "--json", *options], env=environment)
    found = next(each for each in json.loads(made.stdout) if each["subject"] == "database")
    assert (made.exit_code, found["verdict"]) == (1, "problem")
    assert found["found"] == f"there is none in {tmp_path / ('given' if options else 'home/penstock/postgres')}"
    assert "--data-dir" in found["todo"]
    assert [*tmp_path.iterdir()] == []


def test_a_directory_that_looks_like_a_version_is_no_database(tmp_path: Path) -> None:
    """In what somebody named by mistake one was made."""
    (tmp_path / "2024").mkdir()
    (tmp_path / "7").write_text("")
    made = CliRunner().invoke(app, ["doctor", "--json", "--data-dir", str(tmp_path)], env={"WE_POSTGRES_DSN": ""})
    found = next(each for each in json.loads(made.stdout) if each["subject"] == "database")
    assert (made.exit_code, found["found"]) == (1, f"there is none in {tmp_path}")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["2024", "7"]


def test_the_disk_is_reported_or_why_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a data directory it was left out; where one can't be looked at that was the end of all."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    [by_default] = doctor.check_disk(Settings())
    assert (by_default.subject, by_default.found.partition("are free at ")[2]) == (
        "disk",
        str(tmp_path / "penstock/postgres"),
    )
    [elsewhere] = doctor.check_disk(Settings(postgres_dsn=Secret("postgresql://db.example/penstock")))
    assert (elsewhere.verdict, elsewhere.subject) == (OK, "disk")
    assert "not visible from here" in elsewhere.found
    unseen = str(tmp_path / ("x" * 300))
    made = CliRunner().invoke(app, ["doctor", "--json", "--data-dir", unseen], env={"WE_POSTGRES_DSN": ""})
    found = {each["subject"]: each for each in json.loads(made.stdout)}
    assert (made.exit_code, found["disk"]["verdict"]) == (1, "advice")
    assert found["disk"]["found"] == f"{unseen} can't be looked at: File name too long"
    assert found["database"]["verdict"] == "problem"


@pytest.mark.parametrize(
    "command",
    [["token", "list"], ["token", "revoke", "3f9a"], ["session", "list"], ["session", "end", "3f"], ["requeue"]],
)
def test_commands_that_look_for_something_make_no_database(tmp_path: Path, command: list[str]) -> None:
    made = CliRunner().invoke(app, [*command, "--data-dir", str(tmp_path / "data")], env={"WE_POSTGRES_DSN": ""})
    assert made.exit_code == 1
    assert f"there is no database in {tmp_path / 'data'}: name its directory by --data-dir" in made.stderr
    assert [*tmp_path.iterdir()] == []


def test_a_slot_that_nobody_reads_is_counted(postgres_server: PostgresServer) -> None:
    with postgres_server.database(apply_schema) as dsn, psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("SELECT pg_create_physical_replication_slot('nobody', true)")
        try:
            admin.execute("SELECT pg_logical_emit_message(true, 'penstock', repeat('x', 100000))")
            reported = trio.run(holdups, dsn)
        finally:
            admin.execute("SELECT pg_drop_replication_slot('nobody')")
    [slot] = [each for each in reported if each.what == "replication slot nobody"]
    assert slot.wal_bytes is not None
    assert slot.wal_bytes > 100_000


async def holdups(dsn: str) -> list[Holdup]:
    connection = await TrioConnection.connect(dsn)
    try:
        return await checkup.holdups(connection)
    finally:
        connection.close_nowait()


def test_a_table_is_printed_for_people(postgres_server: PostgresServer) -> None:
    with postgres_server.database(apply_schema) as dsn:
        made = CliRunner().invoke(app, ["doctor"], env={"WE_POSTGRES_DSN": dsn, "WE_REST_PROT": "1"})
    lines = made.stdout.splitlines()
    assert lines[0].split() == ["about", "found", "to", "do"]
    assert lines[1].split()[:2] == ["advice", "settings"]
    assert "(did you mean WE_REST_PORT?)" in lines[1]
