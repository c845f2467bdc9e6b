"""How steps, and what is on them and hangs on them, are drawn: the one table for `penstock draw --format svg` and for
the console, whose `graph/shapes.json` its build writes from here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple, assert_never

from penstock.core.graph.definition import StepType


class Shape(NamedTuple):
    """Of a type of step."""

    hue: str
    """By its name in the style sheets."""
    width: int
    height: int
    icon: str
    """A path in a square of 16, drawn as lines."""


_SERVICE: Final = (
    "M6.600 1.500h2.800l.4 1.900 1.500.9 1.900-.6 1.300 2.300-1.400 1.300v1.500l1.400 1.300-1.300 2.300-1.900-.6"
    "-1.500.9-.4 1.900H6.600l-.4-1.900-1.500-.9-1.900.6-1.300-2.300 1.400-1.300V7.300L1.500 6l1.300-2.300 1.900.6"
    " 1.500-.9zM8 5.900a2.100 2.100 0 1 0 0 4.200 2.100 2.100 0 0 0 0-4.200z"
)
_USER: Final = "M8 2a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM2.200 14.200c.6-3.200 2.900-4.700 5.800-4.700s5.200 1.500 5.800 4.700"
_WAIT: Final = "M8 1.700a6.300 6.300 0 1 0 0 12.600A6.300 6.300 0 0 0 8 1.700zM8 4.300V8l2.600 1.600"
_UNDO: Final = "M8 3 3 8l5 5zM13 3 8 8l5 5z"
MARKS: Final[Mapping[str, str]] = {
    "message": "M1.700 3.500h12.600v9H1.700zM1.700 3.700 8 8.600l6.300-4.900",
    "forEach": "M4 3v10M8 3v10M12 3v10",
    "compensation": _UNDO,
    "flowKey": "M2 8a3 3 0 1 1 6 0a3 3 0 1 1-6 0M8 8h6M12 8v3",
    "priority": "M8 13V3M4 7l4-4 4 4",
}
"""What a step has beside its type: small, at the right of its card; a message in place of the type's icon."""
EVENTS: Final[Mapping[str, str]] = {"timer": "M0-4.200V0l2.800 1.700", "error": "M1.500-4.500-2.500.700H2L-1.500 4.700"}
"""What hangs on a step's edge, around its middle, in a circle of 8."""


def shape_of(kind: StepType) -> Shape:
    """How a step of this type is drawn."""
    match kind:
        case StepType.SERVICE_TASK:
            return Shape("svc", 212, 46, _SERVICE)
        case StepType.USER_TASK:
            return Shape("usr", 212, 46, _USER)
        case StepType.CALL_ACTIVITY:
            return Shape("svc", 212, 46, "M2.500 2.500h11v11h-11zM8 5.200v5.600M5.200 8h5.600")
        case StepType.COMPENSATE:
            return Shape("gat", 212, 46, _UNDO)
        case StepType.DECISION:
            return Shape("dec", 212, 46, "M8 1.400 14.600 8 8 14.600 1.400 8zM8 5v3.400M8 11v.1")
        case StepType.TRANSFORMATION:
            return Shape("trf", 212, 46, "M2 4h8M7.500 1.500 10 4 7.500 6.500M14 12H6M8.500 9.500 6 12l2.500 2.500")
        case StepType.WAIT:
            return Shape("wai", 212, 46, _WAIT)
        case StepType.PARALLEL_GATEWAY:
            return Shape("gat", 168, 30, "M2 8h4M6 8c3 0 2-5 8-5M6 8c3 0 2 5 8 5M6 8h8")
        case StepType.JOIN_GATEWAY:
            return Shape("gat", 168, 30, "M14 8h-4M10 8C7 8 8 3 2 3M10 8C7 8 8 13 2 13M10 8H2")
        case StepType.END:
            return Shape("end", 132, 34, "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM6 6h4v4H6z")
        case _:
            assert_never(kind)


def as_json() -> str:
    """For the console's build."""
    types = {kind.value: shape_of(kind)._asdict() for kind in StepType}
    return json.dumps({"types": types, "marks": MARKS, "events": EVENTS}, indent=1) + "\n"
