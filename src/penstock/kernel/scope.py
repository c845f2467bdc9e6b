"""Cancel scopes, with Trio's rules: level-triggered, caught by the outermost cancelled scope, shields, deadlines."""

from __future__ import annotations

import heapq
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from penstock.kernel.errors import Cancelled, TooDeep, TooSlow

if TYPE_CHECKING:
    from penstock.kernel.branch import Branch
    from penstock.kernel.drive import Kernel

_NONE: Final[dict[Any, None]] = {}
"""In place of a dictionary of its own in each of the many scopes that have nothing to put into it. Not written to."""


class CancelScope:
    """A block that can be cancelled: by `cancel`, by its deadline, or with the scope around it unless it is a shield.

    ``cancelled_caught`` says afterwards whether a `Cancelled` ended the block. Deadline and shield are fixed when it is
    made. Opened at most once.
    """

    __slots__ = (
        "_kernel", "_opened", "_seconds", "_too_slow", "branch", "cancel_called", "cancelled_caught", "children",
        "deadline", "depth", "effective", "expired", "is_open", "parent", "path", "scopes", "shield",
    )  # fmt: skip

    def __init__(
        self, kernel: Kernel, seconds: float = inf, *, shield: bool = False, too_slow: bool = False, path: str = ""
    ) -> None:
        self._kernel, self._seconds, self._too_slow = kernel, seconds, too_slow
        self.shield, self.path = shield, path
        self.cancel_called = self.cancelled_caught = self.effective = False
        self.is_open = self._opened = False
        self.expired = False  # its deadline came first
        self.deadline = inf
        self.depth = 0
        self.parent: CancelScope | None = None
        self.branch: Branch | None = None  # that opened it
        self.scopes: dict[CancelScope, None] = _NONE  # that were opened in it
        self.children: dict[Branch, None] = _NONE  # that began in it, wherever they are now

    def __enter__(self) -> CancelScope:
        kernel = self._kernel
        if self._opened:
            raise RuntimeError("a cancel scope is opened once; make a new one")
        branch = kernel.running_branch()
        parent = branch.scope
        if parent.depth >= kernel.limits.max_depth:
            most = kernel.limits.max_depth
            raise TooDeep(f"scopes and nurseries are nested {most} deep at most: a loop needs fewer than a recursion")
        self._opened = self.is_open = True
        self.path = branch.next_path()
        self.branch, self.parent, self.depth = branch, parent, parent.depth + 1
        if not parent.scopes:
            parent.scopes = {}
        parent.scopes[self] = None
        branch.scope = self
        self.deadline = kernel.now + self._seconds
        self._seconds = inf  # a number less to keep while it waits
        if self.deadline <= kernel.now:
            self.cancel_called = True
        elif self.deadline != inf:
            kernel.watch_deadline(self)
        self._recalculate()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        left = self.close(exc)
        if left is None:
            if self._too_slow and self.cancelled_caught:
                raise TooSlow from None
            return True
        if left is exc:
            return False
        raise left

    def cancel(self) -> None:
        """Every operation inside, now and later, raises `Cancelled`, but for what a shield protects. Idempotent."""
        if not self.cancel_called:
            self.cancel_called = True
            self._recalculate()

    def add(self, branch: Branch) -> None:
        """A branch begins in this scope."""
        if not self.children:
            self.children = {}
        self.children[branch] = None

    def remove(self, branch: Branch) -> None:
        """A branch that began in this scope has ended."""
        self.children.pop(branch, None)

    def branches(self) -> list[Branch]:
        """Those that are in it, and in no scope within."""
        found = [child for child in self.children if child.scope is self]
        if self.branch is not None and self.branch.scope is self:
            found.append(self.branch)
        return found

    def find(self, path: str) -> CancelScope | None:
        """Return the open scope of that path at or below this one. Walks: cancels from outside are seldom."""
        todo: list[CancelScope] = [self]
        while todo:
            scope = todo.pop()
            if scope.path == path:
                return scope
            todo.extend(scope.scopes)
        return None

    def close(self, exc: BaseException | None) -> BaseException | None:
        """Takes the scope out of the tree; gives what is left of the block's exception.

        Trio's rule: a `Cancelled` is caught where the scope is cancelled and no cancelled scope around it is visible.
        """
        branch, parent = self.branch, self.parent
        assert branch is not None
        assert parent is not None
        branch.scope = parent
        parent.scopes.pop(self, None)
        self.is_open = False
        return self.absorb(exc)

    def absorb(self, exc: BaseException | None) -> BaseException | None:
        """What is left when the scope has caught what it catches of the block's exception."""
        parent = self.parent
        if exc is None or not self.effective or (not self.shield and parent is not None and parent.effective):
            return exc
        if isinstance(exc, Cancelled):
            self.cancelled_caught = True
            return None
        if isinstance(exc, BaseExceptionGroup):
            return self._absorb_of_group(exc)  # pyright: ignore[reportUnknownArgumentType] - isinstance leaves it open
        return exc

    def _absorb_of_group(self, group: BaseExceptionGroup[BaseException]) -> BaseException | None:
        matched, rest = group.split(Cancelled)
        if matched is None:
            return group
        self.cancelled_caught = True
        return rest

    def _recalculate(self) -> None:
        """Brings `effective` up to date below this scope and tells the branches that were not cancelled before."""
        todo: list[CancelScope] = [self]
        while todo:
            scope = todo.pop()
            parent = scope.parent
            effective = scope.cancel_called or (parent is not None and not scope.shield and parent.effective)
            if effective == scope.effective:
                continue
            scope.effective = effective
            for branch in sorted(scope.branches(), key=_ticket):
                self._kernel.interrupt(branch)
            todo.extend(scope.scopes)


def _ticket(branch: Branch) -> int:
    return branch.ticket


class Deadlines:
    """The open scopes that have one, earliest first; then in the order in which they were entered."""

    __slots__ = ("_heap", "_ticket")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, CancelScope]] = []
        self._ticket = 0

    def add(self, scope: CancelScope) -> None:
        self._ticket += 1
        heapq.heappush(self._heap, (scope.deadline, self._ticket, scope))

    def next(self) -> float:
        """When the next scope is due, `inf` when none is."""
        heap = self._heap
        while heap and (not heap[0][2].is_open or heap[0][2].cancel_called):
            heapq.heappop(heap)
        return heap[0][0] if heap else inf

    def expire(self, now: float) -> None:
        """Cancels the scopes whose time has come."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            scope = heapq.heappop(heap)[2]
            if scope.is_open and not scope.cancel_called:
                scope.expired = True
                scope.cancel()
