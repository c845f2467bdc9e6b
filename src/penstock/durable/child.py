"""Children: what a body starts and waits for, another workflow or an instance of a definition.

Its end is a record of the body's journal, which whoever ends it has written."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.durable.codec import decode, shown
from penstock.durable.errors import ChildFailed, StartRefused
from penstock.durable.step import Step, StepCall, StepOptions
from penstock.durable.workflow import Workflow
from penstock.kernel.errors import Cancelled, Undecodable
from penstock.kernel.operation import CallOperation, Outcome
from penstock.kernel.record import JournalKind, Record

CANCELLED: Final = "CANCELLED"


class ChildEnd(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the journal holds of an end."""

    id: str
    status: str
    result: msgspec.Raw = msgspec.Raw(b"null")
    reason: str | None = None


async def _never_called() -> None:
    raise AssertionError("child() can't be called here: no executor has the run")


_STEP: Final = Step[..., Any](_never_called, StepOptions(raises=(StartRefused,)), "child")


class ChildCall(StepCall):
    """One call of a workflow, or of a definition by its id. ``id`` is that of the run, where it was given one."""

    __slots__ = ("id", "target", "type")

    def __init__(self, target: Workflow[..., Any] | str, arguments: str, id: str | None) -> None:
        name = target if isinstance(target, str) else target.name
        super().__init__(_STEP, name, _STEP.options, arguments)
        self.target, self.id = target, id
        self.type: Any = Any if isinstance(target, str) else target.parameters.result_type()

    def outcome(self, record: Record) -> Outcome:
        """What the body gets: its result, or `ChildFailed`; `StartRefused` where it could not begin."""
        if record.kind is not JournalKind.CHILD:
            return super().outcome(record)
        end = decode(record.payload or "", ChildEnd)
        if end.status != "COMPLETED":
            return Outcome(error=ChildFailed(end.id, end.status, end.reason or ""))
        text = bytes(end.result).decode()
        try:
            return Outcome(decode(text, self.type))
        except ValueError as error:
            name = getattr(self.type, "__name__", self.type)
            what = f"at {record.path}: {self.name!r} gave {shown(text)} which does not fit {name}: {error}"
            raise Undecodable(what) from None


class ChildOperation(CallOperation):
    """Waits for it. One that ended because its body's scope was cancelled: `Cancelled`."""

    __slots__ = ()

    def outcome(self, record: Record) -> Outcome:
        found = super().outcome(record)
        if self.stopping and isinstance(found.error, ChildFailed) and found.error.status == CANCELLED:
            return Outcome(error=Cancelled())
        return found
