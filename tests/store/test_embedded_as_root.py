"""What the account of the embedded PostgreSQL, or another user, tries on an engine that runs as root."""

from __future__ import annotations

import fcntl
import logging
import os
import pwd
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from penstock.store.embedded import cluster
from penstock.store.embedded.embedded import EmbeddedPostgresError, embedded
from tests.postgres import FAST_SETTINGS
from tests.store.servers import alive, engine, fetch, mode, postmaster_pid, running_servers

pytestmark = pytest.mark.root

SECRET = "s3cret-of-the-engine"
START_TIMEOUT_S = 90


@pytest.fixture
def victim(directory: Path) -> Path:
    """A file of root's."""
    path = directory / "victim"
    path.write_text("root's")
    path.chmod(0o644)
    return path


def is_untouched(victim: Path) -> bool:
    found = victim.stat()
    return victim.read_text() == "root's" and (found.st_uid, found.st_mode & 0o777) == (0, 0o644)


def account_of(data_dir: Path) -> pwd.struct_passwd:
    return pwd.getpwuid((data_dir / "18").stat().st_uid)


def as_account(data_dir: Path, path: Path) -> Path:
    """What stands there is the account's."""
    account = account_of(data_dir)
    os.lchown(path, account.pw_uid, account.pw_gid)
    return path


def ends_as(user: str, function: Callable[[], object]) -> str:
    """What becomes of a function in a process of another user: ``done`` or the name of its error."""
    account = pwd.getpwnam(user)
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Trio keeps idle threads, and they hold no locks
        child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            function()
            os.write(writer, b"done")
        except BaseException as error:
            os.write(writer, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as said:
        return said.read()


async def starts(data_dir: Path) -> None:
    with trio.fail_after(START_TIMEOUT_S):
        async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
            assert await fetch(dsn, b"SELECT 1") == [(1,)]


async def is_refused(data_dir: Path, match: str) -> None:
    with trio.fail_after(START_TIMEOUT_S), pytest.raises(EmbeddedPostgresError, match=match):
        async with embedded(data_dir, settings=FAST_SETTINGS):
            raise AssertionError("it started")
    assert running_servers(data_dir) == []


# ------------------------------------------------------------------------------------------ what the account can change


@pytest.mark.parametrize("link", ["symbolic", "hard"])
async def test_a_link_as_settings_file_is_not_followed(data_dir: Path, victim: Path, link: str) -> None:
    settings = data_dir / "18" / "penstock.conf"
    settings.unlink()
    if link == "symbolic":
        settings.symlink_to(victim)
        as_account(data_dir, settings)
    else:
        settings.hardlink_to(victim)
    await starts(data_dir)
    assert is_untouched(victim)
    assert not settings.is_symlink()
    assert settings.stat().st_uid == account_of(data_dir).pw_uid


async def test_a_directory_named_by_a_forged_pid_file_stays(data_dir: Path, directory: Path) -> None:
    roots = directory / "penstock-of-root"
    roots.mkdir()
    (roots / "precious").write_text("root's")
    forged = data_dir / "18" / "postmaster.pid"
    forged.write_text(f"4194303\n{data_dir}/18\n1700000000\n5432\n{roots}\n\n  1 1\nready   \n")
    as_account(data_dir, forged)
    await starts(data_dir)
    assert (roots / "precious").read_text() == "root's"


async def test_a_forged_pid_file_gets_no_process_of_root_signalled(data_dir: Path) -> None:
    code = "import signal, time; print('up', flush=True); time.sleep(600)"
    bystander = await trio.lowlevel.open_process(
        [sys.executable, "-c", code, "-D", f"{data_dir}/18", "x"], stdout=-1, start_new_session=True
    )
    assert bystander.stdout is not None
    assert await bystander.stdout.receive_some(2) == b"up"
    forged = data_dir / "18" / "postmaster.pid"
    forged.write_text(f"{bystander.pid}\n{data_dir}/18\n1700000000\n5432\n{data_dir}/18\n\n  1 1\nready   \n")
    as_account(data_dir, forged)
    try:
        await starts(data_dir)
        assert alive(bystander.pid)
    finally:
        bystander.kill()
        await bystander.wait()


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "directory"])
async def test_a_broken_pid_file_is_reported_and_blocks_nothing(data_dir: Path, victim: Path, kind: str) -> None:
    forged = data_dir / "18" / "postmaster.pid"
    if kind == "link":
        forged.symlink_to(victim)
    elif kind == "device":
        forged.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(forged)
    else:
        forged.mkdir()
    as_account(data_dir, forged)
    await is_refused(data_dir, "postmaster.pid")
    assert is_untouched(victim)


@pytest.mark.parametrize("text", ["9" * 5000, "-1\n", "0\n", "²\n", "\0\n", "1 2\n"])
async def test_a_pid_file_of_nonsense_names_no_process(data_dir: Path, text: str) -> None:
    forged = data_dir / "18" / "postmaster.pid"
    forged.write_text(text)
    installation = cluster.find_installation(data_dir)
    found = cluster.read_postmaster(installation)
    assert found is None or not cluster.is_running(installation, found)


async def test_a_pipe_in_place_of_the_settings_file_blocks_nothing(data_dir: Path) -> None:
    settings = data_dir / "18" / "penstock.conf"
    settings.unlink()
    os.mkfifo(settings)
    as_account(data_dir, settings)
    await starts(data_dir)


# ------------------------------------------------------------------------------------- where root writes, only root may


async def test_an_accounts_data_directory_is_refused_before_any_write(data_dir: Path, victim: Path) -> None:
    for name in ("lock", "postgres.log"):
        (data_dir / name).unlink()
        (data_dir / name).symlink_to(victim)
    as_account(data_dir, data_dir)
    await is_refused(data_dir, f"others can change {data_dir}")
    assert is_untouched(victim)


@pytest.mark.parametrize("bits", [0o777, 0o1777, 0o757])
async def test_a_data_directory_that_others_may_write_to_is_refused(data_dir: Path, bits: int) -> None:
    data_dir.chmod(bits)
    await is_refused(data_dir, f"others can change {data_dir}")


async def test_a_directory_above_that_others_can_change_is_refused(data_dir: Path, directory: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    await is_refused(data_dir, f"others can change {directory}")
    await is_refused(directory / "not" / "there", f"others can change {directory}")
    assert sorted(os.listdir(directory)) == ["data"]


async def test_only_other_users_links_on_the_way_are_refused(data_dir: Path, directory: Path) -> None:
    way = directory / "way"
    way.symlink_to(data_dir)
    await starts(way)
    as_account(data_dir, way)
    await is_refused(way, f"others can change {way}")


async def test_links_as_log_and_lock_are_not_followed(data_dir: Path, victim: Path) -> None:
    """Root's own, say of a copied directory: nobody else could make them here."""
    (data_dir / "postgres.log").unlink()
    (data_dir / "postgres.log").symlink_to(victim)
    await is_refused(data_dir, "postgres.log can't be written")
    (data_dir / "postgres.log").unlink()
    (data_dir / "lock").unlink()
    (data_dir / "lock").hardlink_to(victim)
    await is_refused(data_dir, "lock is not a file of its own")
    (data_dir / "lock").unlink()
    (data_dir / "lock").symlink_to(victim)
    await is_refused(data_dir, "can't be used")
    assert is_untouched(victim)


# --------------------------------------------------------------------------------------- what others can read and reach


async def test_the_server_has_nothing_of_the_engines_environment(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WE_KAFKA_SASL_PASSWORD", SECRET)
    monkeypatch.setenv("MY_TOKEN", SECRET)
    monkeypatch.setenv("PGDATA", "/elsewhere")
    async with embedded(data_dir, settings=FAST_SETTINGS):
        environment = Path(f"/proc/{postmaster_pid(data_dir)}/environ").read_bytes()
    assert SECRET.encode() not in environment
    assert b"/elsewhere" not in environment
    names = {line.partition(b"=")[0].decode() for line in environment.split(b"\0") if line}
    assert names <= {"PATH", "TZ", "LD_LIBRARY_PATH", "LC_ALL", "PG_GRANDPARENT_PID", "PGLOCALEDIR", "PGSYSCONFDIR"}


async def test_initdb_has_nothing_of_the_engines_environment_either(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    environments: list[object] = []
    run_process = trio.run_process

    async def spied(*args: object, **options: object) -> object:
        environments.append(options["env"])
        return await run_process(*args, **options)  # type: ignore[arg-type]  # as they came  # pyright: ignore[reportArgumentType, reportCallIssue] - as they came

    monkeypatch.setattr(trio, "run_process", spied)
    await starts(directory / "data")
    assert len(environments) == 1
    assert SECRET not in str(environments)


async def test_nobody_else_can_hold_the_lock(data_dir: Path) -> None:
    (data_dir / "lock").chmod(0o644)  # as earlier versions made it

    def hold() -> None:
        with open(data_dir / "lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    await starts(data_dir)
    assert mode(data_dir / "lock") == 0o600
    assert ends_as("nobody", hold) == "PermissionError"
    assert ends_as(account_of(data_dir).pw_name, hold) == "PermissionError"


@pytest.mark.parametrize("place", ["cluster", "temporary"])
async def test_other_users_are_refused_at_the_socket(data_dir: Path, directory: Path, place: str) -> None:
    if place == "temporary":
        data_dir = data_dir.rename(directory / ("x" * 120))
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        path = dsn.split("host=")[1].split(" ")[0] + "/.s.PGSQL.5432"

        def connect() -> None:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)

        others = {account.pw_name for account in pwd.getpwall()} & {"nobody", "daemon", "www-data"}
        assert others
        assert {ends_as(name, connect) for name in others} == {"PermissionError"}
        assert ends_as(account_of(data_dir).pw_name, connect) == "done"


async def test_a_temporary_socket_directory_is_remembered_where_only_root_writes(data_dir: Path) -> None:
    data_dir = data_dir.rename(data_dir.with_name("x" * 120))
    async with engine(data_dir) as (process, dsn):
        process.kill()
        await process.wait()
    left = Path(dsn.split("host=")[1].split(" ")[0])
    assert left.is_dir()
    forged = data_dir / "18" / "postmaster.pid"
    lines = forged.read_text().splitlines()
    os.kill(int(lines[0]), signal.SIGKILL)
    lines[4] = "/root/penstock-x"
    forged.write_text("\n".join(lines))
    await starts(data_dir)
    assert not left.exists()


# ------------------------------------------------------------------------------------------------------- whose it is


def known(*names: str) -> list[pwd.struct_passwd]:
    return [pwd.struct_passwd((name, "x", 100 + number, 100, "", "/", "")) for number, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("root", "nobody", "postgres", "penstock"), "penstock"),
        (("root", "nobody", "postgres"), "postgres"),
        (("root", "nobody"), "nobody"),
    ],
)
def test_the_account_is_nobody_only_where_there_is_no_other(
    directory: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], chosen: str
) -> None:
    monkeypatch.setattr(pwd, "getpwall", lambda: known(*names))
    assert cluster._account_for_root(directory / "18").pw_name == chosen


async def test_to_run_as_nobody_is_warned_of(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(pwd, "getpwall", lambda: [nobody])
    with caplog.at_level(logging.WARNING, "penstock.store.embedded"):
        await starts(directory / "data")
    assert "useradd --system penstock" in caplog.text


async def test_a_cluster_of_a_user_that_is_unknown_is_reported(data_dir: Path) -> None:
    os.chown(data_dir / "18", 61234, 61234)
    await is_refused(data_dir, "belongs to the user 61234")
