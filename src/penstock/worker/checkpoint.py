"""A checkpoint with the version of its own format: ``{"format": 2, "value": …}``, with these two fields and no other.

Workers in other languages write the same by hand, so the form is a promise (docs/worker.md). Decides only: what reads
and stores checkpoints is `context.py`.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

MAX_CHECKPOINT_FORMAT: Final = 2**31 - 1
"""Every language has a whole number of this size."""


def with_format(value: object, checkpoint_format: int) -> object:
    """Return the value in the form that is stored. What stores nothing (None, ``msgspec.UNSET``) stays as it is."""
    if value is None or value is msgspec.UNSET or (isinstance(value, msgspec.Raw) and not value):
        return value
    return {"format": checkpoint_format, "value": value}


def format_of(stored: object) -> int | None:
    """Return the format of a stored checkpoint; None for one without a format, and when there is none."""
    if not isinstance(stored, dict):
        return None
    fields = cast("dict[str, object]", stored)
    found = fields.get("format")
    if fields.keys() != {"format", "value"} or not isinstance(found, int) or isinstance(found, bool):
        return None
    return found if 1 <= found <= MAX_CHECKPOINT_FORMAT else None


def value_in(stored: Any, checkpoint_format: int | None) -> Any:
    """Return the value of a stored checkpoint if it has this format (None: if it has no format), else None."""
    found = format_of(stored)
    if found != checkpoint_format:
        return None
    return stored if found is None else stored["value"]
