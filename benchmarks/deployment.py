"""The engine that is measured: a child of ours on free ports with its own embedded PostgreSQL, or one that runs.

A child's data directory is new, on a real disk, with fsync and synchronous_commit on (the embedded server's defaults),
and is removed afterwards. Settings of the environment (WE_*, DB_*) don't reach it; `--set` does. Relies on nothing of
the engine but its command line and its REST port.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.processes import disk_of
from penstock.http import reserved_ports

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 90.0
LOG_TAIL_LINES = 25
ON_NO_DISK = ("tmpfs", "ramfs", "overlay-ram")


class DeploymentFailed(Exception):
    """The engine does not start, answer or stop; the text says what is known."""


@dataclass
class Deployment:
    """Where the engine is and what can be seen of it."""

    host: str
    port: int
    metrics: tuple[str, int] | None
    dsn: str | None
    engine_pid: int | None
    own: bool
    grpc: tuple[str, int] | None = None
    disk: str = ""
    settings: dict[str, str] = field(default_factory=dict[str, str])
    ready_s: float = 0.0
    log: Path | None = None


def existing(
    url: str, dsn: str | None, metrics_url: str | None, engine_pid: int | None, grpc: str | None = None
) -> Deployment:
    """An engine that runs already."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    if not parts.hostname or parts.scheme == "https":
        raise DeploymentFailed(f"{url}: the load generator needs http://HOST:PORT")
    at = urlsplit(f"//{grpc}") if grpc else None
    metrics = urlsplit(metrics_url if "//" in metrics_url else f"//{metrics_url}") if metrics_url else None
    return Deployment(
        host=parts.hostname,
        port=parts.port or 80,
        metrics=None if metrics is None else (metrics.hostname or "", metrics.port or 80),
        dsn=dsn,
        engine_pid=engine_pid,
        own=False,
        grpc=None if at is None else (at.hostname or "", at.port or 9090),
    )


@contextmanager
def work_directory(parent: Path) -> Generator[Path]:
    """A new directory on a real disk, which PostgreSQL's account may enter; removed afterwards."""
    kind = disk_of(parent)
    if kind in ON_NO_DISK:
        raise DeploymentFailed(f"{parent} is on {kind}, which is no disk: choose another --work-dir")
    directory = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=parent))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def engine(
    directory: Path,
    settings: Mapping[str, str],
    *,
    dsn: str | None = None,
    source: Path | None = None,
    under: Sequence[str] = (),
    ready_s: float = READY_TIMEOUT_S,
) -> Generator[Deployment]:
    """An engine of our own, ready; on the embedded PostgreSQL in ``directory``, or on ``dsn``. ``source``: another
    checkout, run by this Python with the packages that are installed here. ``under``: what to run it under."""
    with reserved_ports(3) as ports:
        rest, grpc, metrics = ports
        command = [*under, sys.executable, "-m", "penstock", "serve", "--config", os.devnull, "--bind", "127.0.0.1"]
        command += ["--rest-port", str(rest), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
        if dsn is None:
            command += ["--data-dir", str(directory)]
        environment = _environment(settings, dsn, source)
        log = directory / f"engine-{rest}.log"
        began = time.monotonic()
        with log.open("ab") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                cwd=source,
                start_new_session=True,
            )
        try:
            _wait_ready(process, rest, log, ready_s)
            yield Deployment(
                host="127.0.0.1",
                port=rest,
                metrics=("127.0.0.1", metrics),
                dsn=dsn or _embedded_dsn(directory),
                engine_pid=process.pid,
                own=True,
                grpc=("127.0.0.1", grpc),
                disk=disk_of(directory),
                settings=dict(settings),
                ready_s=time.monotonic() - began,
                log=log,
            )
        finally:
            _stop(process, log)


def _environment(settings: Mapping[str, str], dsn: str | None, source: Path | None) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WE_", "DB_", "PG"))}
    environment.update({variable_of(name): value for name, value in settings.items()})
    if dsn is not None:
        environment["WE_POSTGRES_DSN"] = dsn
    if source is not None:
        environment["PYTHONPATH"] = str(source / "src")
    return environment


def variable_of(setting: str) -> str:
    """The environment variable of a setting."""
    from penstock.settings import SETTINGS

    if setting not in SETTINGS:
        raise DeploymentFailed(f"there is no setting {setting!r}")
    return SETTINGS[setting].env


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path, within_s: float) -> None:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if process.poll() is not None:
            raise DeploymentFailed(f"the engine ended with exit code {process.returncode}:\n{tail(log)}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with closing(connection), suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/readyz")
            with connection.getresponse() as answer:
                if answer.status == 200:
                    return
        time.sleep(0.01)
    raise DeploymentFailed(f"the engine is not ready after {within_s:.0f} s:\n{tail(log)}")


def _embedded_dsn(directory: Path) -> str:
    """From what the embedded server says of itself: its socket's directory, port and owner."""
    for found in directory.glob("*/postmaster.pid"):
        lines = found.read_text().splitlines()
        return f"host={lines[4]} port={lines[3]} user=postgres dbname=postgres"
    raise DeploymentFailed(f"no PostgreSQL runs in {directory}")


def _stop(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise DeploymentFailed(f"the engine did not stop within {STOP_TIMEOUT_S:.0f} s:\n{tail(log)}") from None


def tail(log: Path) -> str:
    """The end of the engine's log, without colours."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(lines))
