"""Journals kept as files: what a workflow's code has to go on fitting, from one deploy to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.durable.check import SavedRun, replay_run
from penstock.durable.forbidden import calls_checked, watch_bodies
from penstock.durable.isolation import LoopWatch, cpu_clock
from penstock.durable.workflow import Workflow
from penstock.testing.durable import WorkflowRun


def save_journal(run: WorkflowRun[Any], path: Path | str) -> None:
    """Keep what a run left, for `assert_replays`. `penstock runs save` writes the same of a run in a database."""
    Path(path).write_bytes(run.saved.text())


def assert_replays(workflow: Workflow[..., Any], *paths: Path | str) -> int:
    """Replay kept journals against this code: those in these files, or in all ``*.json`` of these directories. Gives
    how many there were of this workflow and version.

    Raises:
        AssertionError: code and journal disagree; it names the file, the line, and what to write. Or there were none.
    """
    __tracebackhide__ = True
    watch_bodies()
    files = [file for path in map(Path, paths) for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    found = 0
    for file in files:
        saved = msgspec.json.decode(file.read_bytes(), type=SavedRun)
        if (saved.workflow, saved.version) != (workflow.name, workflow.version):
            continue
        found += 1
        with calls_checked(), LoopWatch(cpu_clock()):
            finding = replay_run(workflow, saved).finding
        if finding is not None:
            patch = "" if finding.patch is None else f"\n\n{finding.patch}"
            raise AssertionError(f"{file}: {finding.text}{patch}")
    if not found:
        raise AssertionError(
            f"no journal of {workflow.name}@{workflow.version} is kept in {', '.join(map(str, paths))}"
        )
    return found
