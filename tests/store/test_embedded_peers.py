"""Who the embedded PostgreSQL lets in: the kernel says who connects, whatever the rights of its socket are."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.store.embedded.embedded import embedded
from tests.postgres import FAST_SETTINGS
from tests.store.servers import fetch

OLD_HBA = "local all all trust\nhost all all 127.0.0.1/32 trust\n"


async def test_its_user_gets_in_as_any_role_and_without_a_password(data_dir: Path) -> None:
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        assert await fetch(dsn, b"SELECT current_user::text") == [("postgres",)]
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE ROLE payments LOGIN PASSWORD 'x'"))
        with psycopg.connect(make_conninfo(dsn, user="payments")) as connection:
            assert connection.execute("SELECT current_user::text").fetchone() == ("payments",)
        rules = await fetch(dsn, b"SELECT DISTINCT type, auth_method, error FROM pg_hba_file_rules")
        assert rules == [("local", "peer", None)]
        assert await fetch(dsn, b"SELECT count(*) FROM pg_ident_file_mappings WHERE error IS NOT NULL") == [(0,)]


async def test_a_directory_of_before_goes_on_and_trusts_nobody_from_its_next_start(data_dir: Path) -> None:
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        await fetch(dsn, b"CREATE TABLE t AS SELECT 42 AS n")
    for name, text in (("pg_hba.conf", OLD_HBA), ("pg_ident.conf", "")):
        (data_dir / "18" / name).write_text(text)
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        assert await fetch(dsn, b"SELECT n FROM t") == [(42,)]
        assert await fetch(dsn, b"SELECT DISTINCT auth_method FROM pg_hba_file_rules") == [("peer",)]
    for name in ("pg_hba.conf", "pg_ident.conf"):
        found = (data_dir / "18" / name).stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, (data_dir / "18").stat().st_uid)


@pytest.mark.root
async def test_other_users_of_the_machine_are_refused_at_an_open_socket(data_dir: Path) -> None:
    async with embedded(data_dir, settings={**FAST_SETTINGS, "unix_socket_permissions": "0777"}) as dsn:
        host = Path(str(conninfo_to_dict(dsn)["host"]))
        for directory in (host, *host.parents):
            if directory != Path("/tmp"):
                directory.chmod(stat.S_IMODE(directory.stat().st_mode) | 0o011)
        owner = pwd.getpwuid((data_dir / "18").stat().st_uid).pw_name
        others = [name for name in ("daemon", "nobody") if name != owner or name == "nobody"]
        for name in others:
            assert "Peer authentication failed" in _said_to(name, dsn), name
        assert await fetch(dsn, b"SELECT 1") == [(1,)]


def _said_to(user: str, dsn: str) -> str:
    """What a client of another user is told, in a process of its own."""
    program = (
        "import ctypes.util, os, pwd, sys, psycopg\n"
        "account = pwd.getpwnam(sys.argv[1])\n"
        "os.setgroups([]); os.setgid(account.pw_gid); os.setuid(account.pw_uid)\n"
        "try: psycopg.connect(sys.argv[2]); print('let in')\n"
        "except psycopg.OperationalError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", program, user, dsn], capture_output=True, text=True, check=True, env=environment
    ).stdout
