"""What users of durable workflows meet beside the kernel's own errors."""

from __future__ import annotations

import re
from typing import Any, Final

_AT: Final = re.compile(r" - at `(?:key in )?\$([^`]*)`$")
"""How msgspec tells a place."""


class NotInWorkflow(RuntimeError):
    """A verb was called outside of a workflow's body."""


class BadDuration(ValueError):
    """A text or number is no length of time."""


class Unencodable(TypeError):
    """A value has no JSON form."""


class PayloadTooLarge(ValueError):
    """Arguments, a result or a message are larger than `payload_max_bytes`."""


class NonRetryable(Exception):
    """Raised in a step: what happened will happen again, so no retry is spent on it."""


class BadMessage(ValueError):
    """A message does not fit the type of a `receive` with ``bad="raise"``. It is used up. ``payload`` is what was sent,
    ``reason`` what is wrong with it, ``field`` where in it: ``amount`` or ``lines[2].sku``, empty for all of it."""

    def __init__(self, text: str, payload: str, reason: str = "") -> None:
        super().__init__(text)
        self.payload, self.reason = payload, reason

    @property
    def field(self) -> str:
        if (found := _AT.search(self.reason)) is not None:
            return found[1].lstrip(".")
        lines = self.reason.splitlines()  # of a model of pydantic: the second one
        return lines[1].strip() if len(lines) > 2 and "validation error" in lines[0] else ""


class SendRefused(Exception):
    """A message to another run can't be delivered: there is no such run, or it has ended."""


class StartRefused(Exception):
    """A run can't be started: its id belongs to one with other arguments, or its name can't be one."""


class ContinueAsNew(BaseException):
    """What `continue_as_new` raises, through the body. Not to be caught."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__("the run continues as a new one")
        self.arguments = args, kwargs


class ChildFailed(Exception):
    """What `child` waited for has not completed. ``id`` is its instance's, ``status`` FAILED, or CANCELLED by somebody
    else, or TOO_LARGE, where it completed with more than comes back."""

    def __init__(self, id: str, status: str, reason: str) -> None:
        super().__init__(f"{id} is {status}" + (f": {reason}" if reason else ""))
        self.id, self.status, self.reason = id, status, reason


class StepFailed(Exception):
    """A step failed for good, with an error that is not among its ``raises``.

    ``type_name`` is the error's class, ``traceback`` its text where the step ran.
    """

    def __init__(self, type_name: str, message: str, traceback: str = "") -> None:
        super().__init__(f"{type_name}: {message}" if message else type_name)
        self.type_name, self.message, self.traceback = type_name, message, traceback


class StepLost(Exception):
    """A step was executed again ``max_lost`` times because the lease of its run had ended, and it ended once more: the
    step outlives the lease, or it ends its process. Whether it did its work is not known."""


class RunFailed(Exception):
    """A run ended with an error: what was raised, and where."""

    def __init__(self, id: str, reason: str) -> None:
        super().__init__(f"run {id} failed: {reason}")
        self.id, self.reason = id, reason


class RunCancelled(RunFailed):
    """A run was cancelled, and has ended."""

    def __init__(self, id: str, reason: str) -> None:
        Exception.__init__(self, f"run {id} was cancelled" + (f": {reason}" if reason else ""))
        self.id, self.reason = id, reason


class UpdateRefused(Exception):
    """A call of an update was refused before it began: by its validator, or as the arguments do not fit. ``name`` is
    the update's, ``reason`` what was said."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"update {name!r} was refused: {reason}")
        self.name, self.reason = name, reason


class UpdateFailed(Exception):
    """The handler of an update raised an error. The run goes on. ``type_name`` is the error's class."""

    def __init__(self, name: str, type_name: str, message: str) -> None:
        super().__init__(f"update {name!r} failed: {message}")
        self.name, self.type_name, self.message = name, type_name, message


class UpdateUnanswered(Exception):
    """The run has ended, and nobody answers the call: no handler of it has begun, or the run was ended by force.
    ``status`` is the run's."""

    def __init__(self, name: str, status: str) -> None:
        super().__init__(f"update {name!r} was not answered: the run is {status}")
        self.name, self.status = name, status


class RunBlocked(Exception):
    """This code can't go on with a run; code that can will. Nothing of the run is lost."""

    def __init__(self, id: str, reason: str) -> None:
        super().__init__(f"run {id} is blocked on code: {reason}")
        self.id, self.reason = id, reason
