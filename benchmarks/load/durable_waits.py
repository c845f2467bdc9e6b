"""Durable workflows that wait, in a process of their own: cancelled, woken by a deadline, taken over after a kill.

`python -m benchmarks.load.durable_waits DSN WHAT --count 100`. Writes "ready", waits for a line on its standard input,
measures, and writes one JSON object. Bodies look at this machine's clock, which no workflow should do: here it is
what is measured.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import trio

from benchmarks.load.durable import milliseconds, ready
from penstock.durable import (
    App,
    Cancelled,
    Run,
    move_on_after,
    receive,
    run_info,
    set_view,
    sleep,
    step,
    update,
    workflow,
)

STARTS_PER_S = 100
DEADLINE_S = 4
"""Longer than a run that waits is kept in memory: it is parked, and woken by its timer."""
TICK_S = 0.05
TICKS = 100_000
SETTLE_S = 0.05
KEYS = 100
"""Values that one run shows."""
PARKED = "parked"

cancelled_at: dict[str, float] = {}


@workflow
async def cancellable() -> None:
    """Waits until it is cancelled, and says when."""
    try:
        await sleep("1 day")
    except Cancelled:
        cancelled_at.setdefault(run_info().id, time.perf_counter())
        raise


@workflow
async def with_deadline(seconds: float) -> float:
    """By how much its end was late."""
    with move_on_after(seconds):
        await sleep("30 days")
    return time.time() - run_info().started_at.timestamp() - seconds


@step
async def tick() -> None:
    """A step that takes a moment."""
    await trio.sleep(TICK_S)


@workflow
async def ticking() -> None:
    """A step, and another one, and so on."""
    for _ in range(TICKS):
        await tick()


async def cancels(options: argparse.Namespace) -> dict[str, float]:
    """From the call to the branch that gets `Cancelled`: called in the engine that has the run, and in another one."""
    async with (
        App(cancellable, at=options.dsn, migrate=True) as app,
        App(at=options.dsn) as other,
    ):
        await ready()
        here = [await _cancelled(await app.start(cancellable)) for _ in range(options.count)]
        there: list[float] = []
        for _ in range(options.count):
            run = await app.start(cancellable)
            there.append(await _cancelled(await other.get(run.instance_id)))
    return {**_shares("cancel", sorted(here)), **_shares("cancel_other", sorted(there))}


async def _cancelled(run: Run[Any]) -> float:
    """How long it took."""
    await trio.sleep(SETTLE_S)  # it has begun to wait
    began = time.perf_counter()
    await run.cancel()
    while run.instance_id not in cancelled_at:
        await trio.sleep(0.0005)
    return cancelled_at.pop(run.instance_id) - began


shown_at: list[float] = []


@workflow
async def showing(count: int) -> None:
    """Shows a value for each message, and says when."""
    for number in range(count):
        await receive("show", int)
        set_view(number, key=str(number))
        shown_at.append(time.perf_counter())
        if number >= KEYS - 1:
            return


async def views(options: argparse.Namespace) -> dict[str, float]:
    """From `set_view` to who waits for the value: in the engine that has the run, and in another one. Then from a call
    of an update to its answer."""
    async with (
        App(showing, calls, at=options.dsn, migrate=True) as app,
        App(at=options.dsn) as other,
    ):
        await ready()
        here = await _views_seen(app, app, options.count)
        there = await _views_seen(app, other, options.count)
        run, asked = await app.start(calls), list[float]()
        for number in range(options.count):
            began = time.perf_counter()
            await run.ask("double", number)
            asked.append(time.perf_counter() - began)
        await run.cancel()
    return {
        **_shares("view", sorted(here)),
        **_shares("view_other", sorted(there)),
        **_shares("ask", sorted(asked)),
    }


async def _views_seen(app: App, other: App, count: int) -> list[float]:
    late: list[float] = []
    while len(late) < count:
        number_of = min(KEYS, count - len(late))
        started = await app.start(showing, number_of)
        run = await other.get(started.instance_id)
        for number in range(number_of):

            async def wait(key: str = str(number), run: Run[Any] = run) -> None:
                await run.view(key, timeout_s=60)
                late.append(time.perf_counter() - shown_at[-1])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.sleep(SETTLE_S)  # it waits
                await started.send("show", number)
    return late


@workflow
async def calls() -> None:
    """Is called until it is cancelled."""

    @update
    def double(number: int) -> int:
        return 2 * number

    await sleep("1 day")


async def lateness(options: argparse.Namespace) -> dict[str, float]:
    """How late parked runs learn that their deadlines are over."""
    late: list[float] = []
    is_parked = trio.Event()
    async with App(with_deadline, at=options.dsn, migrate=True) as app:

        async def one() -> None:
            late.append(await (await app.start(with_deadline, DEADLINE_S)).result())

        def note(event: str, *_: object) -> None:
            if event == PARKED:
                is_parked.set()

        app.on_event = note
        model = await app.start(with_deadline, 30 * 86_400)
        await is_parked.wait()
        await ready(model.instance_id)
        async with trio.open_nursery() as nursery:
            for _ in range(options.count):
                nursery.start_soon(one)
                await trio.sleep(1 / STARTS_PER_S)
        await model.cancel(force=True)
    return _shares("lateness", sorted(late))


async def serve(options: argparse.Namespace) -> dict[str, float]:
    """Serves `ticking` until it is killed; starts so many before."""
    async with App(ticking, at=options.dsn, migrate=True) as app:
        for _ in range(options.count):
            await app.start(ticking)
        await ready()
        await trio.sleep_forever()


def _shares(name: str, ordered: list[float]) -> dict[str, float]:
    return {f"{name}_p50_ms": milliseconds(ordered, 0.5), f"{name}_p99_ms": milliseconds(ordered, 0.99)}


def main() -> None:
    measures = {"cancel": cancels, "views": views, "lateness": lateness, "serve": serve}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    parser.add_argument("what", choices=list(measures))
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    print(json.dumps(trio.run(measures[options.what], options)), flush=True)


if __name__ == "__main__":
    main()
