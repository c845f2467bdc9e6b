"""Bounds of what requests name: pages, cursors, and the length of names."""

from __future__ import annotations

import base64
import binascii

from penstock.engine.requests import ids
from penstock.errors import BadRequest, NotFound
from penstock.store.rows.instances import BEYOND_ALL, LATEST_US, KeyPlace, TimePlace

PAGE_SIZE_DEFAULT = 20
PAGE_SIZE_MAX = 200
OFFSET_MAX = 10_000_000
COUNT_MAX = 10_000
"""Whatever is counted is counted to here, and so many instances are sorted."""
ID_DIGITS = 19
CAUSE_MAX_CHARS = 1_000
"""Of a reason by which failures are found."""
NO_TEXT = "\0"
"""No text of PostgreSQL's has it."""
NAME_MAX_CHARS = 256
"""Of ids, keys, worker and job type names. Longer ones could not be indexed or shown."""


def page_bounds(page: int, page_size: int) -> tuple[int, int]:
    """Return the clamped size of a page and its offset; 0 is the default size. Raises BadRequest for a negative
    page."""
    if page < 0:
        raise BadRequest("page: must not be negative")
    size = PAGE_SIZE_DEFAULT if page_size <= 0 else min(page_size, PAGE_SIZE_MAX)
    if page * size > OFFSET_MAX:
        raise BadRequest(f"page: at most {OFFSET_MAX} items can be paged over; narrow the search")
    return size, page * size


def slice_limit(limit: int, most: int = PAGE_SIZE_MAX) -> int:
    """Return the clamped number of items; 0 is the default."""
    return PAGE_SIZE_DEFAULT if limit <= 0 else min(limit, most)


def read_cursor(cursor: str | None, first: int = BEYOND_ALL) -> int:
    """The number, of an instance mostly, at which a list goes on; without a cursor it begins at ``first``. Raises
    BadRequest."""
    if not cursor:
        return first
    try:
        return ids.read_instance(cursor)
    except NotFound:
        raise BadRequest("cursor: is not a `next` of this list") from None


def read_numbers(cursor: str, *, digits: int, count: int = 1) -> tuple[int, ...]:
    """Return the numbers of a cursor such as ``7-8``: so many, of at most so many digits, that a bigint holds. Raises
    BadRequest."""
    parts = cursor.split("-")
    if len(parts) == count and all(part.isascii() and part.isdigit() and len(part) <= digits for part in parts):
        numbers = tuple(map(int, parts))
        if max(numbers) <= BEYOND_ALL:
            return numbers
    raise BadRequest("cursor: is not a `next` of this list")


def show_cursor(last: int | None) -> str | None:
    """What goes on after the instance ``last``; None at the end of the list."""
    return None if last is None else ids.show_instance(last)


def show_key_cursor(last: KeyPlace | None) -> str | None:
    """What goes on after an instance in a list by business key; None at the end of the list."""
    if last is None:
        return None
    return f"{ids.show_instance(last.id)}.{base64.urlsafe_b64encode(last.key.encode()).decode()}"


def read_key_cursor(cursor: str | None) -> KeyPlace:
    """Where a list by business key goes on. Raises BadRequest."""
    if not cursor:
        return KeyPlace()
    id, _, key = cursor.partition(".")
    try:
        text = base64.b64decode(key, b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        text = NO_TEXT
    if NO_TEXT in text:
        raise BadRequest("cursor: is not a `next` of this list")
    return KeyPlace(text, read_cursor(id, 0))


def show_time_cursor(last: TimePlace | None) -> str | None:
    """What goes on after an instance in a list by time; None at the end of the list."""
    return None if last is None else f"{last.at_us}-{last.id}"


def read_time_cursor(cursor: str | None) -> TimePlace:
    """Where a list by time goes on. Raises BadRequest."""
    if not cursor:
        return TimePlace()
    at_us, id = read_numbers(cursor, digits=ID_DIGITS, count=2)
    if at_us >= LATEST_US:
        raise BadRequest("cursor: is not a `next` of this list")
    return TimePlace(at_us, id)
