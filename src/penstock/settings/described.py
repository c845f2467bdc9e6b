"""How a setting is described: group, meaning and bounds, in the annotation of its field; and how that is read."""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import msgspec

from penstock.settings.secret import Secret

__all__ = ["SettingInfo", "bounds_of", "checkable", "says"]


def says(group: str, text: str, low: float | None = None, high: float | None = None, *, env: str = "") -> msgspec.Meta:
    return msgspec.Meta(description=text, ge=low, le=high, extra={"group": group, "env": env})


class SettingInfo(NamedTuple):
    """One setting as documentation shows it."""

    name: str
    env: str
    group: str
    description: str
    default: Any
    type: Any
    bounds: tuple[float, float] | None

    @property
    def secret(self) -> bool:
        return Secret in get_args(self.type)

    @property
    def is_list(self) -> bool:
        return get_origin(self.type) is tuple


def bounds_of(annotation: Any, meta: msgspec.Meta) -> tuple[float, float] | None:
    """Of the number itself, or of the number in an optional one: msgspec takes bounds of a number only."""
    inner = [get_args(each)[1] for each in get_args(annotation) if get_origin(each) is Annotated]
    for each in (meta, *inner):
        if each.ge is not None and each.le is not None:
            return each.ge, each.le
    return None


def checkable(hint: Any) -> Any:
    """The type that a value is checked against. msgspec takes bounds on a number only, not on ``float | None``."""
    annotation, meta = get_args(hint)
    numbers = [each for each in get_args(annotation) if each is not NoneType]
    if meta.ge is None or not numbers:
        return hint
    bounded: Any = Annotated[numbers[0], meta]
    return bounded | None
