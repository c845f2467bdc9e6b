"""What `App.run` and `App.main` do in a terminal: signals, and a line on standard error for what a person may ask."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import trio

from penstock.client.errors import Forbidden, error_for
from penstock.durable.app import App
from penstock.durable.backend import LeasedRun
from penstock.durable.run import Run
from penstock.durable.signals import Signals
from penstock.durable.step_loop import StepLoop
from penstock.durable.workflow import Workflow
from penstock.plain import escaped

R = TypeVar("R")


_MESSAGE = re.compile(r"message '([\w.-]+)'")


def _print(text: str) -> None:
    sys.stderr.write(f"penstock: {escaped(text)}\n")
    sys.stderr.flush()


class _Teller:
    """Says what becomes of the run that the terminal waits for. ``hints``: how another terminal sends to it."""

    def __init__(self, *, hints: bool) -> None:
        self.run: Run[Any] | None = None
        self._hints = hints
        self._early: list[tuple[str, LeasedRun, str]] = []

    def begin(self, run: Run[Any]) -> None:
        self.run = run
        for event in self._early:
            self.show_event(*event)
        self._early.clear()

    def show_event(self, event: str, leased: LeasedRun, detail: str) -> None:
        if self.run is None:
            self._early = [*self._early[-100:], (event, leased, detail)]
        elif leased.id == self.run.instance_id:
            if event == "resumed":
                _print(f"run {self.run.id} goes on")
            elif event == "parked" and detail:
                _print(f"run {self.run.id} waits: {detail}")
                message = _MESSAGE.search(detail)
                if message is not None and self._hints:
                    self._hints = False
                    _print(f"from another terminal: penstock runs send {shlex.quote(self.run.id)} {message[1]} JSON")


async def serve_one(
    app: App,
    signals: Signals,
    workflow: Workflow[..., R],
    start: Callable[[], Awaitable[Run[R]]],
    id: str | None,
    loop: StepLoop,
) -> R:
    """`App.run`, in the app's thread; ``start`` starts the run."""
    teller = _Teller(hints=app.at is None)
    app.on_event = teller.show_event
    results: list[R] = []
    with trio.CancelScope() as scope, signals.cancel(scope):
        async with app.opened(0.0, loop):
            _print_url(app)
            run = await start()
            if id is None:
                _print(f"run {run.id}; with id= the same run is gone on with when this is run again")
            teller.begin(run)
            try:
                results.append(await run.result())
            except Forbidden as error:  # the token may start runs, and not look at them
                text = f"run {run.id} was started, but its result may not be read: {error.reason}"
                raise error_for(error.code, text) from None
    if not results:
        again = f"when {workflow.name} is served again" if id is None else "when this is run again"
        _print(
            "stopped; " + (f"run {teller.run.id} goes on where it was {again}" if teller.run else "nothing was started")
        )
        _leave(signals.came[0] if signals.came else signal.SIGINT)
    return results[0]


async def serve(app: App, signals: Signals, loop: StepLoop) -> None:
    """`App.main`, in the app's thread."""
    with trio.CancelScope() as scope, signals.cancel(scope):
        async with app.opened(loop=loop):
            _print_url(app)
            _print(f"serves {', '.join(app.workflow_names) or 'nothing'}; Ctrl-C stops it")
            await trio.sleep_forever()
    _print("stopped")


def _print_url(app: App) -> None:
    if app.rest_url is not None:
        _print(f"REST and console at {app.rest_url}")


def _leave(number: int) -> NoReturn:
    """Ends the program as a shell expects of one that was told to; at a prompt of Python only the call."""
    if hasattr(sys, "ps1"):
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
