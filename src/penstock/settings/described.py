"""How a setting is described: group, meaning and bounds, in the annotation of its field."""

from __future__ import annotations

import msgspec

__all__ = ["says"]


def says(group: str, text: str, low: float | None = None, high: float | None = None, *, env: str = "") -> msgspec.Meta:
    return msgspec.Meta(description=text, ge=low, le=high, extra={"group": group, "env": env})
