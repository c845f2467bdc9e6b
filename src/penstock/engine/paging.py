"""Bounds of what requests name: pages, and the length of names."""

from __future__ import annotations

from penstock.errors import BadRequest

PAGE_SIZE_DEFAULT = 20
PAGE_SIZE_MAX = 200
OFFSET_MAX = 10_000_000
BUSINESS_KEY_MAX_CHARS = 512
"""What a B-tree entry of PostgreSQL holds for certain (2,704 bytes, four to a character)."""
NAME_MAX_CHARS = 256
"""Of ids, keys, worker and job type names. Longer ones could not be indexed or shown."""


def page_bounds(page: int, page_size: int) -> tuple[int, int]:
    """The clamped size of a page and its offset; 0 is the default size. Raises BadRequest for a negative page."""
    if page < 0:
        raise BadRequest("page: must not be negative")
    size = PAGE_SIZE_DEFAULT if page_size <= 0 else min(page_size, PAGE_SIZE_MAX)
    if page * size > OFFSET_MAX:
        raise BadRequest(f"page: at most {OFFSET_MAX} items can be paged over; narrow the search")
    return size, page * size
