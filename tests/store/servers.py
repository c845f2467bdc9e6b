"""Servers and processes around the tests of the embedded PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from penstock.store.db.connection import TrioConnection
from tests.postgres import REPOSITORY


def copy(made: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", made, to], check=True)


def exists(path: Path) -> bool:
    return path.exists()


def process_status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def server_user(data_dir: Path) -> int:
    return Path(f"/proc/{postmaster_pid(data_dir)}").stat().st_uid


def postmaster_pid(data_dir: Path) -> int:
    return int((data_dir / "18" / "postmaster.pid").read_text().split()[0])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or before it was read
        return False


async def fetch(dsn: str, sql: bytes) -> list[tuple[object, ...]]:
    async with await TrioConnection.connect(dsn) as connection:
        return await connection.fetch(sql)


async def read_line(process: trio.Process) -> str:
    """What a process printed, byte by byte so that nothing of the next line is taken."""
    assert process.stdout is not None
    line = b""
    with trio.fail_after(60):
        while not line.endswith(b"\n"):
            chunk = await process.stdout.receive_some(1)
            assert chunk, f"it ended after {line!r}"
            line += chunk
    return line.decode().strip()


@asynccontextmanager
async def engine(data_dir: Path) -> AsyncGenerator[tuple[trio.Process, str]]:
    """Another process that runs the server of ``data_dir``; killed at the end if it still runs."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "tests.store.engine_with_postgres", str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    async with process.stdin, process.stdout:
        try:
            yield process, await read_line(process)
        finally:
            if process.returncode is None:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()


def running_servers(data_dir: Path) -> list[str]:
    commands: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and alive(int(entry.name)):
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
                commands.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return [command for command in commands if str(data_dir) in command and "postgres" in command.split(" ")[0]]
