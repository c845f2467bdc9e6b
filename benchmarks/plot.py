"""The plot of a result: one SVG, written here, as bars and lines need no library.

Panels: CPU seconds per 1,000 jobs (engine, PostgreSQL, generator), jobs per second beside the bare commit rates, WAL
bytes, latencies, and whatever a scenario recorded over time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.figures import describe
from benchmarks.result import Result, ScenarioResult, Series

WIDTH = 920
LEFT = 190.0
RIGHT = 90
BAR = 16
GAP = 8
PANEL_GAP = 44
LINE_HEIGHT = 130
COLOURS = ("#2563a8", "#d9822b", "#8a8f98", "#3a8f5c")
TEXT = "#222"
GRID = "#ddd"


class Canvas:
    """Collects shapes from top to bottom."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = 30.0

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, weight: str = "") -> None:
        bold = f' font-weight="{weight}"' if weight else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{TEXT}"{bold}>'
            f"{escape(text)}</text>"
        )

    def box(self, x: float, y: float, width: float, height: float, colour: str, hint: str = "") -> None:
        title = f"<title>{escape(hint)}</title>" if hint else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" fill="{colour}">'
            f"{title}</rect>"
        )

    def line(self, points: Sequence[tuple[float, float]], colour: str, *, dashed: bool = False) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>')

    def svg(self) -> str:
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.y:.0f}" '
            f'viewBox="0 0 {WIDTH} {self.y:.0f}" font-family="sans-serif">\n'
            f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
        )


def write_plot(result: Result, path: Path) -> None:
    """Draw everything that the result has; overwrites the file."""
    canvas = Canvas()
    canvas.text(20, canvas.y, f"Penstock {result.version} {result.commit}, {result.began_at}", size=15, weight="bold")
    canvas.y += 20
    canvas.text(20, canvas.y, f"{result.machine.cpus} CPUs, {result.machine.cpu_model}; durable commits", size=11)
    canvas.y += PANEL_GAP / 2
    _stacked(canvas, result.scenarios, ("engine_cpu_s_per_1000", "postgres_cpu_s_per_1000", "generator_cpu_s_per_1000"))
    _rates(canvas, result)
    _bars(canvas, "WAL, bytes per job or start", result.scenarios, partial(_figure, "wal_bytes_per_item"), 0)
    latency = ("round_p50_ms", "complete_p50_ms", "start_p50_ms")
    for figure in latency:
        _bars(canvas, f"{describe(figure).label}, ms", result.scenarios, partial(_figure, figure), 1)
    for scenario in result.scenarios:
        for series in scenario.runs[-1].series if scenario.runs else []:
            _over_time(canvas, f"{scenario.name}: {series.name} {series.unit}".strip(), series)
    path.write_text(canvas.svg(), encoding="utf-8")


def _figure(name: str, scenario: ScenarioResult) -> float | None:
    return scenario.figures.get(name)


def nice_ceiling(value: float) -> float:
    """The next of 1, 2, 5 × 10ⁿ."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power * 1.000001)


def _title(canvas: Canvas, text: str) -> None:
    canvas.y += PANEL_GAP
    canvas.text(20, canvas.y - 14, text, size=13, weight="bold")


def _scale(canvas: Canvas, top: float, height: float, most: float, digits: int) -> Callable[[float], float]:
    """Grid lines with numbers; gives the function from value to pixels."""
    for quarter in range(5):
        x = LEFT + (WIDTH - LEFT - RIGHT) * quarter / 4
        canvas.line([(x, top), (x, top + height)], GRID)
        canvas.text(x, top + height + 13, f"{most * quarter / 4:,.{digits}f}", anchor="middle", size=10)
    return lambda value: (WIDTH - LEFT - RIGHT) * value / most


def _stacked(canvas: Canvas, scenarios: Sequence[ScenarioResult], figures: Sequence[str]) -> None:
    shown = [scenario for scenario in scenarios if figures[0] in scenario.figures]
    if not shown:
        return
    _title(canvas, "CPU seconds per 1,000 jobs or starts")
    for position, figure in enumerate(figures):
        x = LEFT + position * 160
        canvas.box(x, canvas.y - 4, 10, 10, COLOURS[position])
        canvas.text(x + 15, canvas.y + 5, describe(figure).label, size=11)
    canvas.y += 18
    most = nice_ceiling(max(sum(scenario.figures.get(figure, 0.0) for figure in figures) for scenario in shown))
    height = len(shown) * (BAR + GAP)
    width_of = _scale(canvas, canvas.y, height, most, 3)
    for row, scenario in enumerate(shown):
        y = canvas.y + row * (BAR + GAP) + GAP / 2
        canvas.text(LEFT - 8, y + 12, scenario.name, anchor="end")
        x = float(LEFT)
        for position, figure in enumerate(figures):
            value = scenario.figures.get(figure, 0.0)
            canvas.box(x, y, width_of(value), BAR, COLOURS[position], f"{describe(figure).label} {value:.3f}")
            x += width_of(value)
        canvas.text(x + 5, y + 12, f"{sum(scenario.figures.get(figure, 0.0) for figure in figures):.3f}", size=11)
    canvas.y += height + 14


def _rates(canvas: Canvas, result: Result) -> None:
    """Jobs per second, with the bare commit rates of the same run as dashed lines."""
    rates = result.calibration.rates if result.calibration is not None else []

    def rate(scenario: ScenarioResult) -> float | None:
        return scenario.figures.get("jobs_per_s", scenario.figures.get("instances_per_s"))

    marks = [(f"commits, {each.connections} conn.", each.commits_per_s) for each in rates]
    _bars(
        canvas,
        "jobs or starts per second; dashed: bare commits with 1, 8, 32 connections",
        result.scenarios,
        rate,
        0,
        marks,
    )


def _bars(
    canvas: Canvas,
    title: str,
    scenarios: Sequence[ScenarioResult],
    value_of: Callable[[ScenarioResult], float | None],
    digits: int,
    marks: Sequence[tuple[str, float]] = (),
) -> None:
    values = [(scenario.name, value) for scenario in scenarios if (value := value_of(scenario)) is not None]
    if not values:
        return
    _title(canvas, title)
    most = nice_ceiling(max([value for _, value in values] + [value for _, value in marks]))
    height = len(values) * (BAR + GAP)
    width_of = _scale(canvas, canvas.y, height, most, digits)
    for row, (name, value) in enumerate(values):
        y = canvas.y + row * (BAR + GAP) + GAP / 2
        canvas.text(LEFT - 8, y + 12, name, anchor="end")
        canvas.box(LEFT, y, width_of(value), BAR, COLOURS[0])
        canvas.text(LEFT + width_of(value) + 5, y + 12, f"{value:,.{digits}f}", size=11)
    for _, value in marks:
        x = LEFT + width_of(value)
        canvas.line([(x, canvas.y), (x, canvas.y + height)], COLOURS[1], dashed=True)
    canvas.y += height + 14


def _over_time(canvas: Canvas, title: str, series: Series) -> None:
    if len(series.points) < 2:
        return
    _title(canvas, title)
    most = nice_ceiling(max(value for _, value in series.points))
    ends = series.points[-1][0] or 1.0
    width = WIDTH - LEFT - RIGHT
    for quarter in range(5):
        y = canvas.y + LINE_HEIGHT * (1 - quarter / 4)
        canvas.line([(LEFT, y), (LEFT + width, y)], GRID)
        canvas.text(LEFT - 8, y + 4, f"{most * quarter / 4:,.4g}", anchor="end", size=10)
        canvas.text(
            LEFT + width * quarter / 4,
            canvas.y + LINE_HEIGHT + 14,
            f"{ends * quarter / 4:.0f} s",
            anchor="middle",
            size=10,
        )
    points = [(LEFT + width * at / ends, canvas.y + LINE_HEIGHT * (1 - value / most)) for at, value in series.points]
    canvas.line(points, COLOURS[0])
    canvas.y += LINE_HEIGHT + 20
