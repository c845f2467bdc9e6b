"""Two results side by side: what changed by more than noise, beside how much the machines themselves differed.

Rates are divided by the calibration's commit rate with 32 connections before they are compared, when both results have
one: jobs per second of two days differ by the disk alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.figures import describe, show
from benchmarks.result import Result

NOISE = 0.10
"""Smaller changes are not shown as better or worse: repetitions differ by as much."""
CALIBRATED_CONNECTIONS = 32


@dataclass(frozen=True)
class Difference:
    """One figure of one scenario in both results. ``ratio``: new against old."""

    scenario: str
    figure: str
    old: float
    new: float
    ratio: float
    calibrated: bool
    verdict: str


def compare(old: Result, new: Result) -> list[Difference]:
    """All figures that both results have."""
    speed = _speed(old, new)
    found: list[Difference] = []
    for scenario in new.scenarios:
        before = old.scenario(scenario.name)
        if before is None:
            continue
        for name, value in scenario.figures.items():
            if name not in before.figures:
                continue
            found.append(_difference(scenario.name, name, before.figures[name], value, speed))
    return found


def _difference(scenario: str, name: str, old: float, new: float, speed: float | None) -> Difference:
    figure = describe(name)
    calibrated = speed is not None and figure.unit == "/s" and figure.better == "higher"
    ratio = new / old if old else (1.0 if new == old else float("inf"))
    if calibrated and speed is not None:
        ratio /= speed
    verdict = ""
    if figure.better and abs(ratio - 1) > NOISE:
        verdict = "better" if (ratio > 1) == (figure.better == "higher") else "worse"
    return Difference(scenario, name, old, new, ratio, calibrated, verdict)


def _speed(old: Result, new: Result) -> float | None:
    """How much faster the second run's PostgreSQL committed."""
    if old.calibration is None or new.calibration is None:
        return None
    before, after = (each.calibration.rate(CALIBRATED_CONNECTIONS) if each.calibration else None for each in (old, new))
    return after / before if before and after else None


def print_comparison(console: Console, old: Result, new: Result) -> bool:
    """The table; True when nothing got worse."""
    speed = _speed(old, new)
    console.print(f"old: {old.version} {old.commit}, {old.began_at}", highlight=False)
    console.print(f"new: {new.version} {new.commit}, {new.began_at}", highlight=False)
    if speed is not None:
        console.print(
            f"bare commits with {CALIBRATED_CONNECTIONS} connections: {speed:.2f} × the old ones; "
            "rates (~) are divided by it",
            highlight=False,
        )
    table = Table(box=None)
    for column in ("scenario", "figure", "old", "new", "new/old", ""):
        table.add_column(column, justify="left" if column in ("scenario", "figure", "") else "right")
    differences = compare(old, new)
    colours = {"better": "green", "worse": "red", "": ""}
    last = ""
    for each in differences:
        table.add_row(
            each.scenario if each.scenario != last else "",
            describe(each.figure).label,
            show(each.figure, each.old),
            show(each.figure, each.new),
            f"{'~' if each.calibrated else ''}{each.ratio:.2f}",
            each.verdict,
            style=colours[each.verdict],
        )
        last = each.scenario
    console.print(table)
    if not differences:
        console.print("no scenario is in both results")
    return not any(each.verdict == "worse" for each in differences)
