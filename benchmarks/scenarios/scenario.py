"""The one interface of the scenarios."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.bench import Bench
from benchmarks.result import Bound, Run

Parameter = str | int | float | bool


@dataclass(frozen=True)
class Scenario:
    """``run`` makes one repetition on a deployment that is ready; its figures are named as in `figures.py`.

    ``long``: takes minutes at full size; only run when asked for by name or with --all, and once. ``own_engine``:
    starts or stops engines itself, so it can't be run against one that is given.
    """

    name: str
    title: str
    run: Callable[[Bench], Run]
    bounds: tuple[Bound, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    long: bool = False
    own_engine: bool = False
