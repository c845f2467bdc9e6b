"""One coroutine of a run: the body itself, or a child of a nursery. Names its operations; does not drive itself."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from penstock.kernel.errors import Discarded

if TYPE_CHECKING:
    from contextvars import Context
    from types import FrameType

    from penstock.kernel.drive import Kernel
    from penstock.kernel.nursery import Nursery
    from penstock.kernel.operation import BranchOperation
    from penstock.kernel.scope import CancelScope

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
MAX_DISCARD_THROWS = 1_000


class Branch:
    """``path`` is its identity: from the order of the program, never from scheduling."""

    __slots__ = (
        "activation", "cancels", "context", "coroutine", "draws", "entered", "kernel", "nursery", "operation", "path",
        "scope", "ticket",
    )  # fmt: skip

    def __init__(
        self,
        kernel: Kernel,
        coroutine: Coroutine[BranchOperation, Any, Any],
        path: str,
        nursery: Nursery | None,
        scope: CancelScope,
        ticket: int,
        context: Context,
    ) -> None:
        self.kernel, self.coroutine, self.path = kernel, coroutine, path
        self.nursery, self.scope, self.ticket = nursery, scope, ticket
        self.context = context  # its variables: of the body empty at first, of a child a copy of its spawner's
        self.operation: BranchOperation | None = None  # what it waits for; None when it is due to run
        self.entered = 0  # operations, scopes and nurseries so far: the next one's index
        self.draws = 0  # random streams so far
        self.activation = self.cancels = 0  # how often it was cancelled, in which activation

    def next_path(self) -> str:
        """Return the path of the operation, scope or nursery that it enters now."""
        index = self.entered
        self.entered = index + 1
        return f"{self.path}/{index}"

    def where(self) -> str | None:
        """File and line of the user's code that waits, as ``order.py:41``. Where none is in the branch itself, as in an
        alternative of `first`, that which waits for the branch."""
        frame = self._user_frame()[0]
        if frame is not None:
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        opener = None if self.nursery is None else self.nursery.cancel_scope.branch
        return None if opener is None else opener.where()

    def awaits(self, yielded: object) -> str:
        """What the user's code awaits there, as ``trio.sleep``; an awaitable of its own by what that has yielded."""
        return self._user_frame()[1] or f"something that yields {type(yielded).__name__}"

    def _user_frame(self) -> tuple[FrameType | None, str | None]:
        """Return the innermost frame of the code that belongs to the body, and the function that it awaits.

        What counts as the body's is the folder of its outermost frame that is not ours; a library that it awaits lies
        elsewhere.
        """
        frames: list[FrameType] = []
        awaited: Any = self.coroutine
        while awaited is not None:
            frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
            if frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
                frames.append(frame)
            awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        if not frames:
            return None, None
        home = os.path.dirname(frames[0].f_code.co_filename)
        index = max(i for i, frame in enumerate(frames) if frame.f_code.co_filename.startswith(home))
        below = frames[index + 1] if index + 1 < len(frames) else None
        if below is None:
            return frames[index], None
        module = str(below.f_globals.get("__name__", "")).split(".")[0]
        return frames[index], f"{module}.{below.f_code.co_name}" if module else below.f_code.co_name

    def discard(self) -> None:
        """Ends the coroutine without letting it do anything that counts: each operation raises `Discarded`."""
        for _ in range(MAX_DISCARD_THROWS):
            try:
                self.context.run(self.coroutine.throw, Discarded())
            except BaseException:
                return
