"""The demo's engine: `penstock serve` as a child process on free ports, with its log in a file.

Relies on nothing of the engine but its command line. Must not leave the process behind, however the demo ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from penstock.http import reserved_ports

__all__ = ["EngineFailed", "engine_process", "log_tail"]

# The engine's own grace for requests in flight is 25 s; then it also stops PostgreSQL.
STOP_TIMEOUT_SECONDS = 40
LOG_TAIL_LINES = 25


class EngineFailed(Exception):
    """The engine ended by itself, or can't be stopped; the text holds the end of its log."""


@asynccontextmanager
async def engine_process(data_dir: Path, log: Path) -> AsyncGenerator[str]:
    """Starts an engine, gives the URL of its REST port, and stops it in order at the end.

    Does not wait until it is ready. When it ends before it is told to, the body is cancelled and EngineFailed raised
    (in a group, as from any nursery).
    """
    with reserved_ports(3) as ports:
        async with _engine_on(ports, data_dir, log) as url:
            yield url


@asynccontextmanager
async def _engine_on(ports: list[int], data_dir: Path, log: Path) -> AsyncGenerator[str]:
    rest, grpc, metrics = ports
    command = [*_penstock(), "serve", "--config", os.devnull, "--data-dir", str(data_dir), "--bind", "127.0.0.1"]
    command += ["--rest-port", str(rest), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
    with log.open("ab") as out:
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=_environment(),
            start_new_session=True,  # a Ctrl-C is for the demo, which then stops the engine in order
        )
    stopping = False

    async def watch() -> None:
        code = await process.wait()
        if not stopping:
            raise EngineFailed(f"the engine ended with exit code {code}:\n{log_tail(log)}")

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            yield f"http://127.0.0.1:{rest}"
            stopping = True
            nursery.cancel_scope.cancel()
    finally:
        stopping = True
        with trio.CancelScope(shield=True):
            await _stop(process, log)


async def _stop(process: trio.Process, log: Path) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_TIMEOUT_SECONDS):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
        raise EngineFailed(f"the engine did not stop within {STOP_TIMEOUT_SECONDS} s:\n{log_tail(log)}")


def _penstock() -> list[str]:
    return [sys.executable] if getattr(sys, "frozen", False) else [sys.executable, "-m", "penstock"]


def _environment() -> dict[str, str]:
    """Without the settings of an engine that is configured here: the demo must not touch that one's database."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("WE_", "DB_"))}


def log_tail(log: Path) -> str:
    """Return the end of an engine's log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:])
