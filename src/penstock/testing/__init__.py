"""For tests of workflows: an engine with a virtual clock, stubs for jobs, and what its own tests are made of.

::

    async def test_order(penstock):  # the fixture comes with the pytest plugin
        await penstock.deploy("order.json")
        penstock.stub("charge-card", returns={"paid": True})
        run = await penstock.start("order", {"amount": 10})
        await run.finish()
        run.assert_completed()

Besides: `definitions` (factories), `cancellation` (cancels an operation at each of its steps), `invariants` (what must
hold in a database), `postgres` (a cluster for a test run), `random_definitions` (Hypothesis strategies). Nothing that
runs in production imports any of it. Names are loaded when they are asked for: the plugin is part of every pytest run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import penstock.distribution  # noqa: F401 - it refuses  # pyright: ignore[reportUnusedImport] - it refuses

if TYPE_CHECKING:
    from penstock.testing.blocking import SyncRun, SyncTestEngine
    from penstock.testing.durable import Ask, Message, NotDeterministic, StuckWorkflow, Takes, WorkflowRun, run_workflow
    from penstock.testing.engine_thread import EngineStopped
    from penstock.testing.exploration import Explored, explore
    from penstock.testing.golden import assert_replays, save_journal
    from penstock.testing.performer import HandlerHangs
    from penstock.testing.rehearsal import NotSettled, Stuck, TestEngine
    from penstock.testing.run import Run
    from penstock.testing.stubs import Answer, Stub, fails, handles, raises, returns, vanishes

__all__ = [
    "Answer",
    "Ask",
    "EngineStopped",
    "Explored",
    "HandlerHangs",
    "Message",
    "NotDeterministic",
    "NotSettled",
    "Run",
    "Stub",
    "Stuck",
    "StuckWorkflow",
    "SyncRun",
    "SyncTestEngine",
    "Takes",
    "TestEngine",
    "WorkflowRun",
    "assert_replays",
    "explore",
    "fails",
    "handles",
    "raises",
    "returns",
    "run_workflow",
    "save_journal",
    "vanishes",
]

_MODULES = {
    "blocking": ("SyncRun", "SyncTestEngine"),
    "durable": ("Ask", "Message", "NotDeterministic", "StuckWorkflow", "Takes", "WorkflowRun", "run_workflow"),
    "engine_thread": ("EngineStopped",),
    "exploration": ("Explored", "explore"),
    "golden": ("assert_replays", "save_journal"),
    "performer": ("HandlerHangs",),
    "rehearsal": ("NotSettled", "Stuck", "TestEngine"),
    "run": ("Run",),
    "stubs": ("Answer", "Stub", "fails", "handles", "raises", "returns", "vanishes"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
