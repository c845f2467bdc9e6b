"""Nurseries: branches that have all ended when their block ends, and fail together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVarTuple

from penstock.kernel.errors import BadKey, DuplicateKey
from penstock.kernel.operation import Join, block
from penstock.kernel.scope import CancelScope

if TYPE_CHECKING:
    from penstock.kernel.branch import Branch
    from penstock.kernel.drive import Kernel

Ts = TypeVarTuple("Ts")
MAX_KEY_CHARS = 256
MAX_PATH_CHARS = 900
"""Of a branch: what it does has longer ones, and a journal holds 1,000."""


class Nursery:
    """Opened by `async with`. One child that fails cancels the others; the block raises what was raised, as a group."""

    __slots__ = (
        "_closed",
        "_exceptions",
        "_kernel",
        "_keys",
        "_leaving",
        "_owner",
        "_spawned",
        "_waiting",
        "cancel_scope",
    )

    cancel_scope: CancelScope

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._exceptions: list[BaseException] = []
        self._keys: set[str] = set()
        self._spawned = 0
        self._closed = self._leaving = False
        self._waiting: Branch | None = None
        self._owner: Branch | None = None

    @property
    def path(self) -> str:
        """Where it was opened."""
        return self.cancel_scope.path

    async def __aenter__(self) -> Nursery:
        self.cancel_scope = CancelScope(self._kernel)
        self.cancel_scope.__enter__()
        self._owner = self.cancel_scope.branch
        return self

    def start_soon(
        self,
        function: Callable[[*Ts], Awaitable[object]],
        *args: *Ts,
        key: str | int | None = None,
        name: object = None,
    ) -> None:
        """Start a branch that runs ``function(*args)``.

        Args:
            function: a step, a workflow or a coroutine function. For arguments by keyword, a `functools.partial`.
            args: its arguments.
            key: the name of the branch, 1 to 256 characters and no other child's: what it did is found again under this
                name, also when the loop that starts the children changes its order. By default its place among the
                nursery's children; started by another branch than the one that opened the nursery, that branch's place.
            name: nothing looks at it. It is there for Trio's signature.

        Raises:
            DuplicateKey: another child has the key.
            BadKey: the key is empty or too long.
            TooManyBranches: the run has as many branches as it may.
            RuntimeError: the nursery has ended.
        """
        given: object = function
        if not callable(given):
            kind = type(given).__name__
            raise TypeError(f"start_soon takes a function and its arguments, start_soon(charge, order), not {kind}")
        if self._closed:
            raise RuntimeError("Nursery is closed to new arrivals")
        spawner = self._kernel.running_branch()
        if key is not None:
            path = f"{self.path}.[{self._new_key(str(key))}]"
        elif spawner is self._owner:
            path = f"{self.path}.{self._spawned}"
        else:
            path = spawner.next_path()
        if len(path) > MAX_PATH_CHARS:
            raise BadKey(f"the path of this branch would have {len(path):,} characters, {MAX_PATH_CHARS:,} at most")
        self._spawned += 1
        self._kernel.spawn(function(*args), path, self)

    def _new_key(self, key: str) -> str:
        if not 0 < len(key) <= MAX_KEY_CHARS:
            raise BadKey(f"a key has 1 to {MAX_KEY_CHARS} characters, this one {len(key)}")
        if key in self._keys:
            raise DuplicateKey(f"{key!r} is the key of another child of this nursery: give each its own")
        self._keys.add(key)
        return key.replace("%", "%25").replace("]", "%5D")  # so that a path reads one way only

    def child_ended(self, error: BaseException | None) -> None:
        """Remember that a child's coroutine has ended, and has left the scope."""
        if error is not None:
            self._add(error)
        self._check()

    def _add(self, error: BaseException) -> None:
        self._exceptions.append(error)
        self.cancel_scope.cancel()

    def _check(self) -> None:
        if self._leaving and not self.cancel_scope.children and not self._closed:
            self._closed = True
            if self._waiting is not None:
                self._kernel.resume(self._waiting)
                self._waiting = None

    def joined(self, branch: Branch) -> bool:
        """Return whether all children have ended; if not, the branch is resumed when they have."""
        if self._closed:
            return True
        self._waiting = branch
        return False

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if exc is not None:
            self._add(exc)
        self._leaving = True
        self._check()
        try:
            await block(Join(self))
        except BaseException as error:
            self._exceptions.append(error)
        group = BaseExceptionGroup("unhandled errors in a nursery", self._exceptions) if self._exceptions else None
        left = self.cancel_scope.close(group)
        if left is None:
            return True
        raise left
