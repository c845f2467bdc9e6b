"""What a body meets, and what is wrong with a body or its journal. Knows nothing of how either is stored."""

from __future__ import annotations


class Cancelled(BaseException):
    """The scope around this operation was cancelled. Let it pass: the scope that was cancelled catches it."""


class TooSlow(Exception):
    """A `fail_after` ran out."""


class Discarded(BaseException):
    """The executor gives this copy of the run up; another one goes on. Raised at every operation from then on."""


class Overrun(BaseException):
    """Thrown into a body from outside, as it has run for too long without an await."""


class CancelSwallowed(RuntimeError):
    """A branch caught `Cancelled` again and again and went on."""


class DuplicateKey(ValueError):
    """Two children of one nursery were started with the same key."""


class BadKey(ValueError):
    """A key is empty or too long."""


class TooManyBranches(RuntimeError):
    """A run has as many open branches as it may."""


class TooDeep(RuntimeError):
    """Scopes and nurseries are nested deeper than they may."""


class CallRefusal(Exception):
    """A call of an update is refused before its handler begins: by the validator, or as its arguments do not fit."""


class NotAwaited(RuntimeError):
    """A workflow function called a step, or a verb such as `sleep`, without `await`: it has not been done."""


class Blocked(Exception):
    """The run can't go on with this code; other code may. The kernel that raised it is of no more use."""


class ForeignAwait(Blocked):
    """A body awaited something that is no durable operation, or used a loop, a clock, chance, a file …"""


class OtherArguments(Blocked):
    """A step is asked for with other arguments than the journal has."""


CURE = (
    "Runs that are under way need the steps they began with: put the change under `if patched(…)`, undo it, "
    "or make it another version"
)
FIT = "Let the type take what was recorded, too, or undo the change"


class Mismatch(Blocked):
    """The journal and the code disagree: at `path` the one has `recorded`, the other asks for `asked`."""

    def __init__(self, path: str, recorded: str | None, asked: str | None, where: str | None) -> None:
        self.path, self.recorded, self.asked, self.where = path, recorded, asked, where
        place = f" ({where})" if where else ""
        if asked is None:
            text = f"the journal has {path} {recorded!r}, the code ended or went on without it{place}"
        else:
            text = f"at {path} the journal has {recorded!r}, the code asks for {asked!r}{place}"
        super().__init__(f"{text}. {CURE}")

    def at(self, where: str) -> Mismatch:
        """Return the same, with file and line."""
        return Mismatch(self.path, self.recorded, self.asked, where)


class Undecodable(Blocked):
    """A recorded value does not fit the type that the code gives it now."""


class Endless(Blocked):
    """One activation resumed its branches too often without coming to rest."""
