"""What the run happened on: machine, versions, commit. Nothing here may fail a run: what is unknown is empty."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
from pathlib import Path

from benchmarks.result import Machine

OPEN_FILES_WANTED = 16_384


def machine(disk: str) -> Machine:
    """This machine."""
    return Machine(
        cpus=len(os.sched_getaffinity(0)),
        cpu_model=_cpu_model(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        disk=disk,
    )


def commit() -> str:
    """The commit of the checkout that this is run from, with a + when there are changes."""
    git, top = shutil.which("git"), Path(__file__).parents[1]
    if git is None or not (top / ".git").exists():
        return ""
    found = subprocess.run(
        [git, "describe", "--always", "--dirty=+"], cwd=top, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def version() -> str:
    """Penstock's version."""
    from penstock import __version__

    return __version__


def allow_open_files() -> None:
    """A thousand parked workers are two thousand sockets here: take what the hard limit gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
