"""A run replayed for a person at a debugger, from its journal alone: no step runs, and nothing is written.

The first replay finds where the run waits, failed or was blocked (`find_place`). The second one stops there, in the
workflow function's own frame, before the operation begins (`replay_to`). Must not know any debugger: the caller brings
one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from types import FrameType, TracebackType
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from penstock.durable.activation import Activation, Still
from penstock.durable.check import SavedRun
from penstock.durable.failure import describe
from penstock.durable.forbidden import watch_bodies
from penstock.durable.workflow import Workflow
from penstock.kernel.branch import PACKAGE, Branch
from penstock.kernel.errors import Blocked, Cancelled, Mismatch
from penstock.kernel.record import OUTCOMES, Record
from penstock.kernel.replay import marks_of
from penstock.kernel.unawaited import calls_watched

T = TypeVar("T")
WAITS: Final = frozenset({"step", "sleep", "receive", "child"})
SEALED: Final = '{"$enc":"'
"""How a payload begins that a database keeps encrypted."""


class OpenOperation(NamedTuple):
    """An operation that the journal has no record for. ``text``: what it is, with its line."""

    path: str
    text: str


class Place(NamedTuple):
    """Where a replay of a run ends. ``waits``: the operations that are open there. ``asked``: the paths of all
    operations that the function awaited, in their order. ``traceback``: of the function's own frames, where it raised
    or was blocked. ``blocked_at``: the path at which it was blocked."""

    how: Literal["waits", "failed", "cancelled", "completed", "blocked"]
    text: str
    waits: Sequence[OpenOperation]
    asked: Sequence[str]
    error: BaseException | None = None
    traceback: TracebackType | None = None
    blocked_at: str | None = None

    @property
    def stops(self) -> list[str]:
        """The paths at which a debugger should stop, where nobody names one: the open operations, the one that was
        blocked, or the last one of a run that completed. None for a run that failed: its traceback has the place."""
        if self.how == "waits":
            return [wait.path for wait in self.waits]
        if self.how == "blocked":
            return [each for each in self.asked if each == self.blocked_at]
        return list(self.asked[-1:]) if self.how == "completed" else []


def is_sealed(saved: SavedRun) -> bool:
    """Return whether a journal holds payloads that are still encrypted."""
    return f'":{SEALED}' in saved.arguments or any((each.payload or "").startswith(SEALED) for each in saved.records)


def find_place(workflow: Workflow[..., Any], saved: SavedRun) -> Place:
    """Replay a whole journal and return where it ends. It runs in a thread that no debugger traces."""
    return _untraced(lambda: _find_place(workflow, saved))


def replay_to(
    workflow: Workflow[..., Any],
    saved: SavedRun,
    paths: Collection[str],
    stop: Callable[[FrameType, str], None],
    suspended: Callable[[TracebackType, str], None],
) -> None:
    """Replay a journal, and stop at operations.

    Args:
        workflow: the code.
        saved: the run.
        paths: the operations, by their paths.
        stop: is called with the frame that awaits the operation, before it begins, and with its path.
        suspended: is called in its place for an operation that no line awaits by itself, as a step that a nursery
            started, once it waits: with a traceback of the frames that wait for it.
    """
    left = set(paths)

    def asked(branch: Branch, frame: FrameType | None) -> None:
        path = f"{branch.path}/{branch.entered}"
        if path in left and frame is not None:
            left.discard(path)
            stop(frame, path)

    def fed(activation: Activation) -> None:
        if not left:
            return
        for branch in activation.kernel.open_branches():
            path = getattr(branch.operation, "path", None)
            if path in left and (traceback := _suspended(branch)) is not None:
                left.discard(path)
                suspended(traceback, path)

    try:
        activation = _replay(workflow, saved, asked, fed)
    except _Ended as ended:
        activation = ended.activation
    _untraced(activation.discard)


class _Ended(Exception):
    """The run was blocked while this record was delivered; None: when it started."""

    def __init__(self, activation: Activation, record: Record | None, why: Blocked) -> None:
        super().__init__(str(why))
        self.activation, self.record, self.why = activation, record, why


def _replay(
    workflow: Workflow[..., Any],
    saved: SavedRun,
    asked: Callable[[Branch, FrameType | None], None],
    fed: Callable[[Activation], None] = lambda activation: None,
) -> Activation:
    """Raises `_Ended`."""
    watch_bodies()
    activation = Activation(workflow, saved.run_id, saved.arguments, saved.started_at, Still(), rules=saved.rules)
    record: Record | None = None
    with calls_watched(asked):
        try:
            activation.start(replaying=True, records=saved.records, marks=marks_of(saved.records))
            fed(activation)
            for left, record in zip(range(len(saved.records) - 1, -1, -1), saved.records, strict=True):
                activation.apply_record(record, replaying=True, behind=left > 0)
                fed(activation)
        except Blocked as error:
            raise _Ended(activation, record, error) from None
    return activation


def _find_place(workflow: Workflow[..., Any], saved: SavedRun) -> Place:
    found: dict[str, None] = {}

    def asked(branch: Branch, frame: FrameType | None) -> None:
        if frame is not None:
            found[f"{branch.path}/{branch.entered}"] = None

    def fed(activation: Activation) -> None:
        found.update(dict.fromkeys(each["path"] for each in activation.waits() if each["kind"] in WAITS))

    try:
        activation = _replay(workflow, saved, asked, fed)
    except _Ended as ended:
        return _blocked(ended, list(found))
    result = activation.result
    if result is None:
        waits = [OpenOperation(each["path"], _words(each)) for each in activation.waits() if each["kind"] in WAITS]
        text = f"waits for {activation.waits_in_words() or 'nothing that the journal names'}"
        activation.discard()
        return Place("waits", text, waits, list(found))
    error = activation.ending().error
    if error is None:
        return Place("completed", "completed", [], list(found))
    how: Literal["failed", "cancelled"] = "cancelled" if isinstance(error, Cancelled) else "failed"
    raised = _first_of(result.error or error)
    text = f"{how}: {describe(raised)}"
    return Place(how, text, [], list(found), raised, _of_user(raised.__traceback__))


def _blocked(ended: _Ended, asked: list[str]) -> Place:
    activation, why = ended.activation, ended.why
    path = why.path if isinstance(why, Mismatch) else ended.record.path if ended.record is not None else None
    if path is not None and ended.record is not None and ended.record.kind not in OUTCOMES:
        path = None
    traceback = _of_user(why.__traceback__)
    if traceback is None and path not in asked:
        near = [each for each in activation.kernel.open_branches() if (path or "/").startswith(f"{each.path}/")]
        traceback = _suspended(max(near, key=lambda each: len(each.path))) if near else None
    return Place("blocked", f"is blocked: {why}", [], asked, why, traceback, path)


def _words(wait: dict[str, Any]) -> str:
    name = f" {wait['name']}" if wait.get("name") else ""
    return f"{wait['path']} {wait['kind']}{name} ({wait.get('where')})"


def _first_of(error: BaseException) -> BaseException:
    """Of a group the first error that is none: it has the line."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _of_user(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without Penstock's frames; None where no other is in it."""
    kept: list[tuple[FrameType, int, int]] = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(PACKAGE):
            kept.append((traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno))
        traceback = traceback.tb_next
    return _linked(kept)


def _suspended(branch: Branch) -> TracebackType | None:
    """The frames of a branch that waits, as a traceback that ends at its line; those of who waits for it, where the
    branch has none of the user's."""
    kept: list[tuple[FrameType, int, int]] = []
    awaited: Any = branch.coroutine
    while awaited is not None:
        frame: FrameType | None = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            kept.append((frame, frame.f_lasti, frame.f_lineno))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    if not kept and branch.nursery is not None and (opener := branch.nursery.cancel_scope.branch) is not None:
        return _suspended(opener)
    return _linked(kept)


def _linked(frames: list[tuple[FrameType, int, int]]) -> TracebackType | None:
    linked: TracebackType | None = None
    for frame, last, line in reversed(frames):
        linked = TracebackType(linked, frame, last, line)
    return linked


def _untraced(call: Callable[[], T]) -> T:
    """What a call gives in a thread of its own, in which an editor's breakpoints don't stop."""
    answer: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="penstock replay")
    vars(thread)["pydev_do_not_trace"] = True  # how pydevd is asked, and debugpy on it
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return answer[0]
