"""What requests have in common: texts and numbers where proto3 can't tell "empty" from "not given".

Must not know what a request means. Everything raises BadRequest with the field's name as it stands in the proto file.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol, TypeVar

from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import (
    PayloadLimits,
    check_text,
    given_variables,
)
from penstock.errors import BadRequest
from penstock.loop.offload import INLINE_MAX_BYTES, run_sized
from penstock.loop.taskless import need_task

EnumT = TypeVar("EnumT", bound=IntEnum)


class Sliced(Protocol):
    """A request for a list."""

    cursor: str
    limit: int
    page: int
    page_size: int


def required(value: str, field: str) -> str:
    """A text that must be there. An id that can't be one is found nowhere, and a name is checked by the engine."""
    if not value:
        raise BadRequest(f"{field}: is required")
    return value


def given(value: str, field: str) -> str | None:
    """A text, None when it is empty."""
    return check_text(value, field, NAME_MAX_CHARS) if value else None


def known(kind: type[EnumT], number: int, field: str) -> EnumT | None:
    """Return the member of an enum, None for UNSPECIFIED. A number that is none of its members is refused."""
    try:
        return kind(number) if number else None
    except ValueError:
        raise BadRequest(f"{field}: {number} is not a value of {kind.__name__}") from None


async def read_variables(raw: bytes | None, limits: PayloadLimits, field: str) -> bytes | None:
    """As `given_variables`, large ones away from the loop."""
    if len(raw or b"") > INLINE_MAX_BYTES:
        await need_task()
    return await run_sized(len(raw or b""), lambda: given_variables(raw, limits, field))


def slice_of(request: Sliced) -> tuple[str | None, int] | None:
    """Cursor and limit of a list that is read by key; None where pages are asked for. Raises BadRequest."""
    if not (request.cursor or request.limit):
        return None
    for name in ("page", "page_size"):
        if getattr(request, name):
            raise BadRequest(f"{name}: can't be combined with cursor or limit")
    return given(request.cursor, "cursor"), request.limit
