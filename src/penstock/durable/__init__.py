"""Workflows as ordinary Python: bodies whose nurseries, cancel scopes and deadlines are durable.

A body is an `async def` under `workflow`; what it awaits are steps and the verbs here. Its semantics are Trio's, driven
by `penstock.kernel`. `App` runs them on PostgreSQL, `penstock.testing.run_workflow` in memory. Bodies import nothing of
the engine: `App` is loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import penstock.distribution  # noqa: F401 - it refuses  # pyright: ignore[reportUnusedImport] - it refuses
from penstock.durable.errors import (
    BadDuration,
    BadMessage,
    ChildFailed,
    NonRetryable,
    NotInWorkflow,
    PayloadTooLarge,
    RunBlocked,
    RunCancelled,
    RunFailed,
    SendRefused,
    StartRefused,
    StepFailed,
    StepLost,
    Unencodable,
    UpdateFailed,
    UpdateRefused,
    UpdateUnanswered,
)
from penstock.durable.in_code import Queue
from penstock.durable.step import Step, StepInfo, step, step_info
from penstock.durable.updates import Update, update
from penstock.durable.verbs import (
    RunInfo,
    Won,
    child,
    continue_as_new,
    each,
    fail_after,
    first,
    move_on_after,
    now,
    open_memory_channel,
    open_nursery,
    patched,
    receive,
    rng,
    run_info,
    send,
    set_view,
    sleep,
    start,
    uuid4,
)
from penstock.durable.verbs import (
    new_cancel_scope as CancelScope,  # noqa: N812 - called as Trio's class is
)
from penstock.durable.workflow import Workflow, workflow
from penstock.kernel.errors import (
    BadKey,
    Cancelled,
    CancelSwallowed,
    DuplicateKey,
    ForeignAwait,
    NotAwaited,
    TooDeep,
    TooManyBranches,
    TooSlow,
)
from penstock.kernel.local import (
    BrokenChannel,
    ClosedChannel,
    EndOfChannel,
    Event,
    MemoryReceiveChannel,
    MemorySendChannel,
    Semaphore,
    WouldBlock,
)
from penstock.kernel.nursery import Nursery
from penstock.wire.queue import Rate
from penstock.wire.schedule import ScheduleSpec

if TYPE_CHECKING:
    from penstock.durable.app import App
    from penstock.durable.run import Run

__all__ = [
    "App",
    "BadDuration",
    "BadKey",
    "BadMessage",
    "BrokenChannel",
    "CancelScope",
    "CancelSwallowed",
    "Cancelled",
    "ChildFailed",
    "ClosedChannel",
    "DuplicateKey",
    "EndOfChannel",
    "Event",
    "ForeignAwait",
    "MemoryReceiveChannel",
    "MemorySendChannel",
    "NonRetryable",
    "NotAwaited",
    "NotInWorkflow",
    "Nursery",
    "PayloadTooLarge",
    "Queue",
    "Rate",
    "Run",
    "RunBlocked",
    "RunCancelled",
    "RunFailed",
    "RunInfo",
    "ScheduleSpec",
    "Semaphore",
    "SendRefused",
    "StartRefused",
    "Step",
    "StepFailed",
    "StepInfo",
    "StepLost",
    "TooDeep",
    "TooManyBranches",
    "TooSlow",
    "Unencodable",
    "Update",
    "UpdateFailed",
    "UpdateRefused",
    "UpdateUnanswered",
    "Won",
    "Workflow",
    "WouldBlock",
    "child",
    "continue_as_new",
    "each",
    "fail_after",
    "first",
    "move_on_after",
    "now",
    "open_memory_channel",
    "open_nursery",
    "patched",
    "receive",
    "rng",
    "run_info",
    "send",
    "set_view",
    "sleep",
    "start",
    "step",
    "step_info",
    "update",
    "uuid4",
    "workflow",
]


def __getattr__(name: str) -> object:
    if name not in ("App", "Run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from penstock.durable import app, run
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name} runs an engine in this program: pip install 'penstock-workflow[engine]' ({error})"
        ) from error
    return app.App if name == "App" else run.Run
