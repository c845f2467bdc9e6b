"""Updates: calls into a run that are checked, recorded and answered.

A call comes as a record (`Kind.ASKED`) that is nothing to the body. Whoever has the run checks it when the body waits
(`problem_of`). A call that is refused leaves the journal again; one that is accepted brings a record (`ACCEPTED`), by
which its handler begins in a branch of its own, live and at replay. What the handler gave is a record: `ANSWERED`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from penstock.kernel.errors import (
    FIT,
    CallRefusal,
    Cancelled,
    Discarded,
    Mismatch,
    Overrun,
    TooManyBranches,
    Undecodable,
)
from penstock.kernel.operation import Outcome
from penstock.kernel.record import JournalKind, Record
from penstock.kernel.scope import CancelScope

if TYPE_CHECKING:
    from penstock.kernel.branch import Branch
    from penstock.kernel.drive import Kernel
    from penstock.kernel.nursery import Nursery

PATH = "~updates"
"""Of the nursery that handlers run in."""


class Bind(Protocol):
    """Reads the arguments of a call, JSON, and gives what is to be called. Raises `Refusal`; with ``check`` also where
    the validator says so."""

    def __call__(self, arguments: str, *, check: bool) -> Callable[[], Any]: ...


class UpdateHandler(msgspec.Struct, frozen=True, eq=False):
    """What serves an update. ``context``: the variables of the branch that made it."""

    name: str
    bind: Bind
    context: Context


class RunUpdates:
    """The calls of one run, and its handlers. To the branches of handlers it is their nursery."""

    __slots__ = (
        "_body", "_kernel", "_moved", "_open", "accepted", "answers", "cancel_scope", "handlers", "passing", "path",
        "waiting",
    )  # fmt: skip

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self.path = kernel, PATH
        root, scope = kernel.root, CancelScope(kernel, path=PATH)
        scope.parent, scope.depth, scope.is_open, scope.effective = root, 1, True, root.effective
        if not root.scopes:
            root.scopes = {}
        root.scopes[scope] = None
        self.cancel_scope = scope
        self.handlers: dict[str, UpdateHandler] = {}
        self.waiting: dict[str, Record] = {}  # by id: calls that are neither accepted nor refused, oldest first
        self.accepted: set[str] = set()
        self.answers: dict[str, tuple[str, Outcome]] = {}  # by id name and outcome, until they are a record
        self._open: dict[str, tuple[str, Branch]] = {}  # by id: name and branch of a handler that runs
        self._body: Outcome | None = None  # how the body has ended, while handlers run
        self.passing = 0  # records of calls and refusals
        self._moved = 0  # the position of the last record that was something to the body

    # -- for the body

    def register(self, name: str, bind: Bind) -> None:
        """Take a handler, in the context of the branch that runs. Raises ValueError for a second one of a name."""
        if name in self.handlers:
            raise ValueError(f"the run has an update {name!r} already: give the other one a name of its own")
        self.handlers[name] = UpdateHandler(name, bind, copy_context())

    # -- for whoever has the run

    def callable(self) -> list[Record]:
        """Return the calls that may be checked now, oldest first: the body has a handler, goes on, is not cancelled."""
        if self._body is not None or self._kernel.result is not None or self._kernel.root.effective:
            return []
        return [record for record in self.waiting.values() if record.name in self.handlers]

    def problem_of(self, record: Record) -> str | None:
        """Why a call is refused; None where it may begin. It changes nothing."""
        handler = self.handlers[record.name or ""]
        try:
            handler.context.copy().run(handler.bind, record.payload or "[]", check=True)
        except CallRefusal as refusal:
            return str(refusal)
        return None

    @property
    def as_of(self) -> str:
        """Return what an acceptance of now says of the state that the call was checked in."""
        return str(self._moved)

    # -- records

    def deliver(self, record: Record) -> None:
        """Take in one record about a call."""
        if record.kind is JournalKind.ASKED or record.kind is JournalKind.REFUSED:
            self.passing += 1
        if record.kind is JournalKind.ASKED:
            if record.path not in self.accepted:
                self.waiting[record.path] = record
        elif record.kind is JournalKind.ACCEPTED:
            self._kernel.advance(record.at)
            self._accept(record)
        elif record.kind is JournalKind.ANSWERED:
            self._kernel.advance(record.at)
            if self.answers.pop(record.path, None) is None and record.path in self._open:
                name, branch = self._open[record.path]
                raise Mismatch(branch.path, f"the answer of {name}", None, branch.where())
        else:
            self.waiting.pop(record.path, None)

    def delivered(self, record: Record) -> None:
        """Remember that the activation which follows from any record is over."""
        if record.kind is not JournalKind.ASKED and record.kind is not JournalKind.REFUSED:
            self._moved = record.pos

    def _accept(self, record: Record) -> None:
        """Begin the handler. If records came after the call was checked, it is checked again, as by a replay."""
        id, kernel = record.path, self._kernel
        if id in self.accepted or kernel.result is not None or self._body is not None:
            return  # the body ended before it could begin: nobody answers it
        asked, handler = self.waiting.get(id), self.handlers.get(record.name or "")
        if asked is None or handler is None:
            raise Mismatch(PATH, f"update {record.name}", None, None)
        del self.waiting[id]
        self.accepted.add(id)
        checked = record.payload == self.as_of
        context = handler.context.copy()
        try:
            call = context.run(handler.bind, asked.payload or "[]", check=not checked)
        except CallRefusal as refusal:
            if checked:  # by other code
                raise Undecodable(f"the arguments of update {handler.name}: {refusal}. {FIT}") from None
            self.answers[id] = handler.name, Outcome(error=refusal)
            return
        path = f"{PATH}.[{handler.name} {len(self.accepted)}]"
        nursery = cast("Nursery", self)  # for a branch it is one
        try:
            branch = context.run(kernel.spawn, self._serve(id, handler.name, call), path, nursery)
        except TooManyBranches as error:
            self.answers[id] = handler.name, Outcome(error=error)
        else:
            self._open[id] = handler.name, branch

    async def _serve(self, id: str, name: str, call: Callable[[], Any]) -> None:
        try:
            value = call()
            outcome = Outcome(await value if inspect.isawaitable(value) else value)
        except (Discarded, Overrun, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            outcome = Outcome(error=error)
        self.answers[id] = name, outcome

    # -- as a nursery

    def child_ended(self, error: BaseException | None) -> None:
        """Answer the call whose handler's branch has ended, and has left the scope."""
        for id, (name, branch) in list(self._open.items()):
            if branch not in self.cancel_scope.children:
                del self._open[id]
                self.answers.setdefault(id, (name, Outcome(error=error or Cancelled())))
        if not self._open and self._body is not None:
            body, self._body = self._body, None
            self._kernel.end(body)

    def body_ended(self, outcome: Outcome) -> bool:
        """Return whether the run has ended with its body. Else it ends when its handlers have: they are cancelled where
        the body has failed, as the others in a nursery are."""
        if not self._open:
            return True
        self._body = outcome
        if isinstance(outcome.error, Exception):
            self.cancel_scope.cancel()
        return False
