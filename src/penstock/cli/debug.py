"""`penstock debug`: a run replayed from its journal under a debugger, to where it waits, failed or was blocked.

Under pdb in the terminal; in the editor's debugger where that has started the command (pydevd: VS Code, PyCharm).
"""

from __future__ import annotations

import os
import pdb  # noqa: T100 - the debugger is what it is for
import sys
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.cli.check import NotLoaded, load
from penstock.cli.options import print_json
from penstock.cli.plain import echo
from penstock.cli.runs import on_run

if TYPE_CHECKING:
    from penstock.durable.check import SavedRun
    from penstock.durable.debug import Place
    from penstock.durable.workflow import Workflow

NOT_FOUND, WRONG = 1, 2
PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
PATHS_SHOWN: Final = 20
_SET_BREAK: Final = 111
"""Why it stops, as pydevd numbers it: for a breakpoint."""
FILE_SUFFIX: Final = ".json"


class Unusable(ValueError):
    """There is no such run, code or operation."""


def run_debug(
    run: str, target: str, until: str | None, at: str | None, token_file: Path | None, *, as_json: bool = False
) -> int:
    """Replay a run under a debugger. Return 0, 1 when there is no such run or operation, 2 for a file or code that
    can't be read."""
    from penstock.durable.debug import find_place, is_sealed

    try:
        saved = _read_file(Path(run)) if run.endswith(FILE_SUFFIX) else _ask(run, at, token_file)
        workflow = _code_of(saved, target)
        if is_sealed(saved):
            raise Unusable(
                f"the journal of {run} is encrypted: give the engine's keys in WE_ENCRYPTION_KEYS, or name the engine"
                " (--at grpc://…), which decrypts it"
            )
    except (NotLoaded, Unusable) as error:
        echo(f"penstock: {error}", err=True)
        return WRONG
    place = find_place(workflow, saved)
    if as_json:
        about = {"id": run, "workflow": saved.workflow, "version": saved.version, "records": len(saved.records)}
        waits = [wait._asdict() for wait in place.waits]
        print_json(about | {"how": place.how, "text": place.text, "waits": waits, "operations": list(place.asked)})
        return 0
    echo(f"{run} ({saved.workflow}@{saved.version}), {len(saved.records):,} records: {place.text}")
    for wait in place.waits[1:]:
        echo(f"  {wait.text}")
    if until is not None and until not in place.asked:
        latest = ", ".join(place.asked[-PATHS_SHOWN:]) or "none"
        echo(f"penstock: --until {until}: the run came to no such operation. Its latest ones: {latest}", err=True)
        return NOT_FOUND
    _debug(workflow, saved, place, [until] if until is not None else place.stops, run)
    return 0


def _debug(workflow: Workflow[..., Any], saved: SavedRun, place: Place, paths: list[str], run: str) -> None:
    from penstock.durable.debug import replay_to

    debugger = _Editor() if "pydevd" in sys.modules else _Terminal()
    waits = {wait.path for wait in place.waits}

    def say(path: str) -> None:
        if path in waits:
            echo(f"{run} goes no further than {path}: its journal ends here, and no step runs under penstock debug")
        elif path == place.blocked_at:
            echo(f"{run} is blocked at {path}")
        else:
            echo(f"{run} comes to {path}")

    def stop(frame: FrameType, path: str) -> None:
        say(path)
        debugger.stop(frame)

    def suspended(traceback: TracebackType, path: str) -> None:
        say(path)
        debugger.show(traceback, None)

    if place.traceback is not None and not paths:
        debugger.show(place.traceback, place.error)
        return
    try:
        replay_to(workflow, saved, paths, stop, suspended)
    except _Left:
        return
    finally:
        debugger.end()
    if debugger.is_left:
        return
    echo(f"the replay has ended: {run} {place.text}")


class _Left(BaseException):
    """The person has ended the debugger."""


class _Terminal:
    """pdb."""

    def __init__(self) -> None:
        self._pdb, self._traced = _Pdb(skip=["penstock.*"], nosigint=True), sys.gettrace()

    @property
    def is_left(self) -> bool:
        return bool(self._pdb.quitting)

    def end(self) -> None:
        sys.settrace(self._traced)

    def stop(self, frame: FrameType) -> None:
        self._pdb.stop_at(frame)

    def show(self, traceback: TracebackType, error: BaseException | None) -> None:
        if error is not None:
            echo(f"{type(error).__name__}: {error}")
        self._pdb.reset()
        self._pdb.interaction(None, traceback)


class _Pdb(pdb.Pdb):
    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """Without what calls the workflow function."""
        stack, index = super().get_stack(f, t)
        ours = [at for at, (frame, _) in enumerate(stack[:index]) if frame.f_code.co_filename.startswith(PACKAGE)]
        first = ours[-1] + 1 if ours else 0
        return stack[first:], index - first

    def stop_at(self, frame: FrameType) -> None:
        """A prompt at a line that runs, before what it calls. What the person says is done from there on."""
        self.reset()
        at: FrameType | None = frame
        while at is not None and not at.f_code.co_filename.startswith(PACKAGE):  # what calls it is not to be seen
            at.f_trace = self.trace_dispatch
            at = at.f_back
        self.botframe = at
        self.interaction(frame, None)
        if self.quitting:
            raise _Left
        if self.breaks or self.stopframe is not self.botframe:  # anything but `continue`
            sys.settrace(self.trace_dispatch)


class _Editor:
    """pydevd, which has started this program. Its `settrace` would stop at the line after."""

    is_left = False
    _pydevd: Any = sys.modules.get("pydevd")

    def end(self) -> None:
        """It goes on tracing."""

    def stop(self, frame: FrameType) -> None:
        debugger, thread = self._pydevd.get_global_debugger(), threading.current_thread()
        state = self._pydevd.set_additional_thread_info(thread)
        state.is_tracing += 1  # as in its own trace function: else it would stop within, once more
        try:
            debugger.set_suspend(thread, _SET_BREAK)
            debugger.do_wait_suspend(thread, frame, "line", None)
        finally:
            state.is_tracing -= 1

    def show(self, traceback: TracebackType, error: BaseException | None) -> None:
        if error is not None:  # editors stop at what nobody catches, with its frames
            raise error.with_traceback(traceback)
        frame, line = traceback.tb_frame, traceback.tb_lineno
        echo(f"it waits at {frame.f_code.co_filename}:{line}")


def _ask(run: str, at: str | None, token_file: Path | None) -> SavedRun:
    from penstock.durable.check import save_run

    return on_run(run, at, token_file, save_run)


def _read_file(file: Path) -> SavedRun:
    from penstock.durable.check import SavedRun

    try:
        return msgspec.json.decode(file.read_bytes(), type=SavedRun)
    except OSError as error:
        raise Unusable(f"{file}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise Unusable(f"{file}: is not a journal of `penstock runs save`: {error}") from None


def _code_of(saved: SavedRun, target: str) -> Workflow[..., Any]:
    found = load(target)[1]
    for each in found:
        if (each.name, each.version) == (saved.workflow, saved.version):
            return each
    has = ", ".join(f"{each.name}@{each.version}" for each in found)
    raise NotLoaded(f"{target} has {has}, and the run is of {saved.workflow}@{saved.version}")
