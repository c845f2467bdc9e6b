"""Binds a row of the table of operations to what serves it. Types hold both to the same request and answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from penstock.api.operation import DeclaredOperation
from penstock.errors import BadRequest

Q = TypeVar("Q", bound=Struct)
A = TypeVar("A")
T = TypeVar("T")
PART_ITEMS: Final = 50
"""Of a list that is read by key, where its caller names no limit."""

Serve: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Takes a row's request, gives its answer, raises PenstockError."""
Binding: TypeAlias = tuple[str, Serve]
"""The name of an operation, and what serves it."""


def bind(row: DeclaredOperation[Q, A], serve: Callable[[Q], Awaitable[A]]) -> Binding:
    """What serves the operation of a row."""
    return row.name, serve


class Windowed(Protocol):
    """A request for a list that is read by key, or by number."""

    @property
    def page(self) -> int | None: ...
    @property
    def page_size(self) -> int | None: ...
    @property
    def cursor(self) -> str | None: ...
    @property
    def limit(self) -> int | None: ...


def slice_of(ask: Windowed) -> tuple[str | None, int] | None:
    """``cursor`` and ``limit`` of a list that is read by key; None where pages are asked for. Raises BadRequest."""
    if not ask.cursor and ask.limit is None:
        return None
    for name, value in (("page", ask.page), ("pageSize", ask.page_size)):
        if value is not None:
            raise BadRequest(f"{name}: can't be combined with `cursor` or `limit`")
    return ask.cursor or None, ask.limit or 0


def part(limit: int | None, default: int = PART_ITEMS) -> int:
    """Return how many items of a list are asked for."""
    return default if limit is None else limit


def needed(value: T | None, field: str) -> T:
    """A part of a request that has to be given. Raises BadRequest."""
    if value is None:
        raise BadRequest(f"{field}: is required")
    return value
