"""A run's journal replayed in another process, with another order of sets and dictionaries of hashes: ``shadow=True``.

`python -m penstock.testing.shadow` reads a `Journey` from its standard input and writes what it `Saw`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from typing import Any, cast

import msgspec

from penstock.durable.activation import Activation, Still
from penstock.durable.failure import describe
from penstock.durable.workflow import Workflow
from penstock.kernel.errors import Blocked
from penstock.kernel.record import Record

WAIT_MAX_S = 60.0
_NEEDS = "shadow replays in another process: the workflow has to stand in a module that can be imported, not in"


class Journey(msgspec.Struct, frozen=True):
    """All that a replay needs."""

    path: list[str]
    module: str
    name: str
    version: int
    run_id: str
    arguments: str
    started_at: float
    journal: list[Record]


class Saw(msgspec.Struct, frozen=True):
    """What became of it: JSON of the result and the view, or an error, or why the code does not fit the journal."""

    result: str | None = None
    view: str | None = None
    error: str | None = None
    blocked: str | None = None


def seen(run: Activation) -> Saw:
    """Of a run that has ended."""
    ended = run.ending()
    if ended.error is not None:
        return Saw(view=run.info.view, error=describe(ended.error))
    return Saw(run.workflow.encode_result(ended.value), run.info.view)


def replay_elsewhere(
    workflow: Workflow[Any, Any], run_id: str, arguments: str, started_at: float, journal: list[Record]
) -> Saw:
    """Replays in another process. Raises ValueError for a workflow that it would not find there."""
    place = f"{workflow.__module__}.{workflow.function.__qualname__}"
    if workflow.__module__ == "__main__" or "<locals>" in place:
        raise ValueError(f"{_NEEDS} {place}")
    journey = Journey(
        sys.path, workflow.__module__, workflow.name, workflow.version, run_id, arguments, started_at, journal
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    process = subprocess.run(
        [sys.executable, "-m", "penstock.testing.shadow"],
        input=msgspec.json.encode(journey),
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
        timeout=WAIT_MAX_S,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"the replay in another process ended: {process.stderr.decode(errors='replace')[-2000:]}")
    return msgspec.json.decode(process.stdout, type=Saw)


def replay_here(journey: Journey) -> Saw:
    """In the other process."""
    sys.path[:] = journey.path
    found = [
        cast("Workflow[..., Any]", value)
        for value in vars(import_module(journey.module)).values()
        if isinstance(value, Workflow) and (value.name, value.version) == (journey.name, journey.version)
    ]
    if not found:
        raise ValueError(f"{_NEEDS} {journey.module}, where there is no workflow {journey.name}")
    workflow = found[0]
    run = Activation(workflow, journey.run_id, journey.arguments, journey.started_at, Still(), strict_args=True)
    try:
        run.replay(journey.journal)
    except Blocked as error:
        return Saw(blocked=str(error))
    return seen(run) if run.result is not None else Saw(blocked="it did not end")


def main() -> None:
    """Standard input to standard output; what the workflow's module prints goes to standard error."""
    out, sys.stdout = sys.stdout, sys.stderr
    out.buffer.write(msgspec.json.encode(replay_here(msgspec.json.decode(sys.stdin.buffer.read(), type=Journey))))


if __name__ == "__main__":
    main()
