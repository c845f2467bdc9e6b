"""A workflow with a long step, and a program that executes two runs of it at a time, as if on a machine of its own."""

from __future__ import annotations

import time
from pathlib import Path

from penstock.durable import App, step, workflow
from penstock.durable.loaded_run import ExecutorLimits
from penstock.runtime import membership

ENCODE_S = 12.0
"""Several times what it takes to notice that an engine has lost its session."""
_begun: list[Path] = []


@step
def encode(number: int) -> int:
    with _begun[0].open("a") as file:
        file.write(f"{number}\n")
    time.sleep(ENCODE_S)
    return number


@workflow
async def film(number: int) -> int:
    return await encode(number)


def main(dsn: str, begun: str) -> None:
    """Serves until SIGTERM."""
    _begun.append(Path(begun))
    membership.this_process = lambda: None  # nobody can look whether its process lives
    App(film, at=dsn, limits=ExecutorLimits(max_in_memory=2)).main()
