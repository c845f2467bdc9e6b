"""The example order in a process that dies at an append: `python -m tests.durable.dying_executor DSN WORLD KIND COUNT`,
or, with the word ``families`` behind, families of runs and instances that call each other, or with ``calls`` a run
that is called.

``before`` and ``after`` the append that brings the journal beyond COUNT records, or ``delivered``: a moment after the
body has seen what was appended. COUNT -1: it lives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import trio

from chaos.families_process import family, leaf, rounds
from examples import durable_order
from examples.durable_order import order
from penstock.durable import App
from penstock.durable.backend import LeasedRun, Stored
from penstock.durable.local import LocalBackend
from penstock.kernel.record import Record
from tests.durable.called import tally

append = LocalBackend.append


async def dies(
    self: LocalBackend, leased: LeasedRun, records: Sequence[Record], after: int, mail: int
) -> list[Stored] | None:
    seen[0] += len(records)
    if kind == "before" and seen[0] + mail > count:
        os._exit(9)
    stored = await append(self, leased, records, after, mail)
    if seen[0] + mail > count:
        if kind == "delivered":
            trio.lowlevel.spawn_system_task(die_soon)
        else:
            os._exit(9)
    return stored


async def die_soon() -> None:
    await trio.sleep(0.01)
    os._exit(9)


if __name__ == "__main__":
    dsn, path, kind, count, seen = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), [0]
    durable_order.world = durable_order.World(path)
    if count >= 0:
        LocalBackend.append = dies  # type: ignore[method-assign]  # it dies on purpose
    workflows = [family, rounds, leaf] if "families" in sys.argv else [tally] if "calls" in sys.argv else [order]
    App(*workflows, at=dsn, backend="trio").main()
