"""What the demo shows: bars on a terminal, plain lines elsewhere, and one instance's history as a table.

Relies on rich. Must not know where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from penstock.client import Instance, StepExecution
from penstock.plain import escaped

__all__ = ["DemoView", "history_table", "make_console"]

PLAIN_LINES = 10
PLAIN_WIDTH = 140


def make_console() -> Console:
    console = Console(highlight=False)
    # Without a terminal rich assumes 80 columns, which would wrap the table in a log file.
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


class DemoView:
    """Counts instances per step while a run is shown. ``titles``: step id to what is written beside its bar."""

    def __init__(self, console: Console, titles: dict[str, str], total: int) -> None:
        self._console = console
        self._titles = titles
        self._total = total
        self._counts = dict.fromkeys(titles, 0)
        self._said = 0
        self._progress = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars = {step: self._progress.add_task(title, total=self._total) for step, title in self._titles.items()}
        self._progress.start()
        if not self._console.is_terminal:
            self._console.print("         " + "  ".join(self._titles.values()), soft_wrap=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def done(self, step: str) -> None:
        """One more instance is past this step."""
        self._counts[step] += 1
        self._progress.advance(self._bars[step])
        if not self._console.is_terminal:
            self._say_line()

    def _say_line(self) -> None:
        everything = self._total * len(self._titles)
        tenths = sum(self._counts.values()) * PLAIN_LINES // everything
        if tenths > self._said:
            self._said = tenths
            counts = "  ".join(f"{self._counts[step]:>{len(title)}}" for step, title in self._titles.items())
            self._console.print(f"  {100 * tenths // PLAIN_LINES:3} %  {counts}", soft_wrap=True)


def history_table(instance: Instance, history: Sequence[StepExecution], titles: dict[str, str]) -> Table:
    """Return one row per step execution, attempts of a job below each other."""
    title = escaped(f"History of instance {instance.id} (order {instance.business_key})")
    table = Table(title=title, title_justify="left")
    for name in ("step", "type", "status", "attempt", "worker"):
        table.add_column(name)
    for name in ("entered after", "took"):
        table.add_column(name, justify="right")
    started = instance.started_at
    for item in history:
        title = titles.get(item.step_id, item.step_id)
        entered, took = _milliseconds(started, item.started_at), _milliseconds(item.started_at, item.ended_at)
        attempts = [
            (str(each.attempt), each.worker or "", (each.status or "") + (f": {each.reason}" if each.reason else ""))
            for each in item.attempts
        ]
        number, worker, _ = attempts[-1] if attempts else ("", "", "")
        for earlier_number, earlier_worker, outcome in attempts[:-1]:
            _add_row(table, title, item.step_type, outcome, earlier_number, earlier_worker, entered, "")
            title, entered = "", ""
        _add_row(table, title, item.step_type if title else "", item.status, number, worker, entered, took)
    return table


def _add_row(table: Table, *cells: str) -> None:
    table.add_row(*(Text(escaped(cell)) for cell in cells))


def _milliseconds(start: datetime | None, end: datetime | None) -> str:
    return f"{(end - start).total_seconds() * 1000:.0f} ms" if start and end else ""


def failures(instances: Iterable[Instance]) -> list[str]:
    """One line for each instance that did not complete."""
    return [
        escaped(f"instance {each.id} is {each.status}: {each.failure_reason or 'no reason given'}")
        for each in instances
        if each.status != "COMPLETED"
    ]
