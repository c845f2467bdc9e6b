"""The demo from beginning to end: engine, definition, instances, worker, history, and everything stopped again.

Relies on the SDK and `penstock serve`. Must leave nothing behind: no process, and no file outside ``--data-dir``.
"""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import trio
from rich.console import Console

from penstock.cli.demo.engine import EngineFailed, engine_process, log_tail
from penstock.cli.demo.orders import order_worker
from penstock.cli.demo.view import DemoView, failures, history_table, make_console
from penstock.cli.examples import example
from penstock.client import Client, ClientError, Instance, StartRequest, Unavailable
from penstock.errors import leaves
from penstock.plain import escaped, escaped_lines

__all__ = ["run_demo"]

# As long as its PostgreSQL may take, on a machine that is busy: an engine that ends is told of at once.
READY_TIMEOUT_SECONDS = 300
# No instance may take longer than this from when it is looked at; the whole run takes a few seconds.
END_TIMEOUT_SECONDS = 120
FAILURES_SHOWN = 5
NEXT = """`penstock serve`, then http://127.0.0.1:8080/console/ in a browser (`penstock demo --open` keeps the engine
for a look), and the README on how to write a worker."""


class DemoFailed(Exception):
    """Instances did not complete."""


class _Step(msgspec.Struct):
    id: str
    name: str


class _Definition(msgspec.Struct):
    id: str
    name: str
    steps: list[_Step]


def run_demo(*, instances: int, data_dir: str | None = None, keep_open: bool = False) -> int:
    """Exit code: 0 when every instance completed, 1 when something failed, 130 after Ctrl-C or SIGTERM.

    ``keep_open``: then the engine stays until one of these, which is the way it ends (0).
    """
    console = make_console()
    code = 1
    try:
        with _work_directory() as directory:
            logging.basicConfig(filename=directory / "worker.log", level=logging.INFO)  # not among the bars
            data = Path(data_dir).expanduser().absolute() if data_dir else directory / "postgres"
            shown = trio.Event()
            hold = shown if keep_open else None
            show = partial(_demo, console, instances, data, directory / "engine.log", hold)
            code = 0 if trio.run(_until_interrupted, show) or shown.is_set() else 130
    except* (DemoFailed, EngineFailed, ClientError, OSError) as failed:  # groups: the worker runs in a task group
        for error in leaves(failed):
            console.print(escaped_lines(f"The demo failed: {error}"), markup=False)
    if code == 0:
        console.print(f"Stopped. Next: {NEXT}", markup=False)
    if code == 130:
        console.print("Interrupted; the engine was stopped.")
    return code


@contextmanager
def _work_directory() -> Generator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        directory.chmod(0o755)  # when root starts the engine, PostgreSQL runs as another user below it
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _until_interrupted(run: Callable[[], Awaitable[None]]) -> bool:
    """Return whether ``run`` came to its end; SIGINT or SIGTERM cancels it, so that all is stopped in order."""
    completed = False
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def interrupt() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(interrupt)
            await run()
            completed = True
            nursery.cancel_scope.cancel()
    return completed


async def _demo(console: Console, count: int, data_dir: Path, log: Path, hold: trio.Event | None) -> None:
    """With ``hold`` it sets that at its end, and stays until it is cancelled."""
    path = example("order-fulfilment.json")
    definition = msgspec.json.decode(path.read_bytes(), type=_Definition)
    titles = {step.id: step.name for step in definition.steps}
    console.print(f"Starting the engine with its embedded PostgreSQL in {escaped(str(data_dir))}", markup=False)
    begun = time.monotonic()
    async with engine_process(data_dir, log) as url, Client(url) as client:
        await _wait_ready(client, log)
        console.print(f"Ready after {time.monotonic() - begun:.1f} s at {url}")
        summary = await client.upload_definition(path)
        console.print(f"Uploaded {path.name} as {summary.id} version {summary.version}: {definition.name}")
        console.print(f"Starting {count} instances and a worker for their jobs")
        begun = time.monotonic()
        with DemoView(console, titles, count) as view:
            async with order_worker(url, view.done):
                ended = await _run_instances(client, definition, count, view)
        seconds = time.monotonic() - begun
        if failed := failures(ended):
            raise DemoFailed(
                f"{len(failed)} of {count} instances did not complete\n" + "\n".join(failed[:FAILURES_SHOWN])
            )
        jobs = count * (len(definition.steps) - 1)
        console.print(f"{count} instances completed, {jobs} jobs in {seconds:.1f} s\n")
        await _show_history(console, client, ended[0], titles)
        if hold is not None:
            console.print(f"Look at them in the console: {url}/console/\nCtrl-C stops the engine", markup=False)
            hold.set()
            await trio.sleep_forever()
        console.print("Stopping the engine")


async def _wait_ready(client: Client, log: Path) -> None:
    try:
        await client.wait_until_ready(timeout_s=READY_TIMEOUT_SECONDS)
    except Unavailable as error:  # it tells how long the last of many looks took
        text = f"the engine was not ready within {READY_TIMEOUT_SECONDS} s; at the last look: {error.reason}"
        raise EngineFailed(f"{text}\n{log_tail(log)}") from error


async def _run_instances(client: Client, definition: _Definition, count: int, view: DemoView) -> list[Instance]:
    requests = [
        StartRequest(
            definition_id=definition.id,
            variables={"orderId": number, "quantity": 1 + number % 3, "price": 10 * (1 + number % 7)},
            business_key=str(number),
        )
        for number in range(1, count + 1)
    ]
    started = [result.unwrap() for result in await client.start_instances(requests)]
    last_step = definition.steps[-1].id
    ended: list[Instance] = []
    for instance in started:
        ended.append(await client.wait_until_ended(instance.id, timeout_s=END_TIMEOUT_SECONDS))
        view.done(last_step)
    return ended


async def _show_history(console: Console, client: Client, instance: Instance, titles: dict[str, str]) -> None:
    history = await client.get_history(instance.id)
    console.print(history_table(instance, history, titles))
    variables = msgspec.json.encode(instance.variables).decode()
    console.print(f"Its variables at the end: {escaped(variables)}\n", markup=False)
