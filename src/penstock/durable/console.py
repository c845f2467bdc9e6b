"""What `App.run` and `App.main` do in a terminal: signals, and a line on standard error for what a person may ask."""

from __future__ import annotations

import signal
import sys
from typing import Any, TypeVar

import trio

from penstock.durable.app import STOP_GRACE_S, App, until_signalled
from penstock.durable.backend import Held
from penstock.durable.duration import Duration
from penstock.durable.run import Run
from penstock.durable.workflow import Workflow

R = TypeVar("R")


def _tell(text: str) -> None:
    sys.stderr.write(f"penstock: {text}\n")
    sys.stderr.flush()


class _Teller:
    """Says what becomes of the run that the terminal waits for."""

    def __init__(self) -> None:
        self.run: Run[Any] | None = None
        self._early: list[tuple[str, Held, str]] = []

    def begin(self, run: Run[Any]) -> None:
        self.run = run
        for event in self._early:
            self.hear(*event)
        self._early.clear()

    def hear(self, event: str, held: Held, detail: str) -> None:
        if self.run is None:
            self._early = [*self._early[-100:], (event, held, detail)]
        elif held.id == self.run.instance_id:
            if event == "resumed":
                _tell(f"run {self.run.id} goes on")
            elif event == "parked" and detail:
                _tell(f"run {self.run.id} waits: {detail}")


async def serve_one(
    app: App,
    workflow: Workflow[..., R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    id: str | None,
    deadline: Duration | None,
) -> R:
    """`App.run`."""
    teller = _Teller()
    app.on_event = teller.hear
    results: list[R] = []
    came: list[int] = []
    with trio.CancelScope() as scope:
        async with until_signalled(scope, came), app.opened(0.0):
            run = await app.start(workflow, *args, id=id, deadline=deadline, **kwargs)
            if id is None:
                _tell(f"run {run.id}; with id= it can be gone on with")
            teller.begin(run)
            results.append(await run.result())
    if not results:
        _tell("stopped; " + (f"run {teller.run.id} goes on where it was" if teller.run else "nothing was started"))
        if signal.SIGTERM in came:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt
    return results[0]


async def serve(app: App) -> None:
    """`App.main`."""
    with trio.CancelScope() as scope:
        async with until_signalled(scope, []), app.opened(STOP_GRACE_S):
            _tell(f"serves {', '.join(app.workflow_names) or 'nothing'}; Ctrl-C stops it")
            await trio.sleep_forever()
    _tell("stopped")
