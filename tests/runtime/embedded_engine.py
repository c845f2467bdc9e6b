"""What runs below an engine on its embedded PostgreSQL, by /proc."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

from tests.runtime.engine_process import EngineProcess


@contextlib.contextmanager
def data_directory() -> Generator[Path]:
    """A directory that the account PostgreSQL runs as may enter, also when the tests run as root."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-runtime-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        for pid_file in directory.glob("*/postmaster.pid"):  # of an engine that was killed
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(pid_file.read_text().split("\n")[0]), signal.SIGQUIT)
        shutil.rmtree(directory, ignore_errors=True)


def children(pid: int) -> list[int]:
    """The processes that this one started and that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[1] == str(pid) and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def postmaster(engine: EngineProcess) -> int:
    """The embedded server."""
    (pid,) = children(engine.process.pid)
    return pid


def backend(engine: EngineProcess) -> int:
    """A session of the engine on the embedded server."""
    for pid in children(postmaster(engine)):
        if "penstock" in title(pid) or "[local]" in title(pid):
            return pid
    raise AssertionError("no session")


def title(pid: int) -> str:
    """What a process calls itself; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
