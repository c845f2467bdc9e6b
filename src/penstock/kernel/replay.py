"""A run from its journal: the same body, the same records, so the same state; what differs is a `Mismatch`."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from penstock.kernel.drive import Kernel
from penstock.kernel.operation import Start
from penstock.kernel.record import OUTCOMES, Record


def replay(kernel: Kernel, body: Coroutine[Any, Any, Any], records: Sequence[Record]) -> dict[str, Start]:
    """Starts the body and delivers the records, in their order; gives the calls that have no outcome yet, by path.

    What was stopped in a former life and has no outcome is among them: whoever goes on decides whether it starts again.
    Raises `Blocked` when code and journal disagree.
    """
    open_calls: dict[str, Start] = {}
    kernel.marks, kernel.is_behind = marks_of(records), bool(records)
    if records and (rules := records[0].rules) is not None:
        kernel.rules = rules
    kernel.start(body)
    for left, record in zip(range(len(records) - 1, -1, -1), records, strict=True):
        _note(kernel, open_calls)
        kernel.is_behind = left > 0
        kernel.deliver(record)
        if record.kind in OUTCOMES:
            open_calls.pop(record.path, None)
    _note(kernel, open_calls)
    return open_calls


def marks_of(records: Sequence[Record]) -> set[str]:
    """What `patched` said yes to in former lives of the run."""
    return {record.mark for record in records if record.mark is not None}


def _note(kernel: Kernel, open_calls: dict[str, Start]) -> None:
    for command in kernel.take_commands():
        if isinstance(command, Start):
            open_calls[command.path] = command
