"""What the user sees while it runs: one moving line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

QUIET_INTERVAL_S = 15.0


class Display:
    """The progress of the whole run. Everything goes to the console that it is given (stderr)."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1.0, detail="")
        self._scenario = ""
        self._shown_at = 0.0
        self._shown = ""

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def begin(self, scenario: str, number: int, of: int) -> None:
        """A scenario begins."""
        self._scenario = f"[{number}/{of}] {scenario}"
        self.update(0.0, "")

    def repetition(self, number: int, of: int) -> None:
        """A repetition of it begins."""
        name = self._scenario.partition(" (")[0]
        self._scenario = f"{name} ({number}/{of})" if of > 1 else name

    def update(self, share: float, text: str) -> None:
        """How far it is, 0 to 1, and with what."""
        self._bar.update(self._task, completed=share, description=self._scenario, detail=text)
        now = time.monotonic()
        if not self.console.is_terminal and text and (text != self._shown or now - self._shown_at > QUIET_INTERVAL_S):
            self._shown, self._shown_at = text, now
            self.console.print(f"{self._scenario}: {text} {share:.0%}", highlight=False, markup=False)

    def print_line(self, text: str) -> None:
        """Something that stays on the screen."""
        self.console.print(text, highlight=False, markup=False)
