"""Binds a row of the table of operations to what serves it. Types hold both to the same request and answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar

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


def part(limit: int | None, default: int = PART_ITEMS) -> int:
    """Return how many items of a list are asked for."""
    return default if limit is None else limit


def needed(value: T | None, field: str) -> T:
    """A part of a request that has to be given. Raises BadRequest."""
    if value is None:
        raise BadRequest(f"{field}: is required")
    return value
