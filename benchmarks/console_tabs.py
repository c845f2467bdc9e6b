"""What the console's overview, open in three tabs, costs an engine at work: jobs per second and CPU per job.

    PYTHONPATH=src python -m benchmarks.console_tabs [--blocks 16] [--slice-seconds 3] [--chromium | --aa]

One engine under a steady load (32 instances in flight, 32 workers with one call per job), in slices of some seconds
without and with tabs in turn (ABBA, BAAB), so that what the machine does meanwhile meets both; a block of four gives
one ratio, and their middle and interval are those of `benchmarks.pair`. A tab is a process that asks what the page
asks: the parked `GET /v1/watch` with the overview, and `GET /readyz` every two seconds. Each of the three asks for
itself, as three browsers would; tabs of one browser ask once for all. `--chromium` opens the page in one browser
instead, whose own work shares the machine's processors. With `--aa` both halves are without tabs: what the figures say
then is the machine's noise. Exit code 1 when throughput is more than 2 % lower for sure.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import groupby
from typing import Final
from urllib.parse import urlencode

from rich.console import Console

from benchmarks.bench import Bench, Options, single_workers
from benchmarks.calibration import print_line
from benchmarks.database import Database
from benchmarks.deployment import engine, work_directory
from benchmarks.load.counts import Count
from benchmarks.load.generator import Generators
from benchmarks.load.scripts import StartPlan
from benchmarks.meter import per_item
from benchmarks.pair import ORDERS, Estimate, estimate
from benchmarks.result import median
from benchmarks.workflows import START_VARIABLES_BYTES, linear, variables_of

TABS: Final = 3
JOBS_PER_INSTANCE: Final = 3
IN_FLIGHT: Final = 32
ENDLESS: Final = 100_000_000
WARM_JOBS: Final = 20_000
LOWER_MAX: Final = 0.02
READY_EVERY_S: Final = 2.0
OPENED_TIMEOUT_S: Final = 60.0
FIGURES: Final = {
    "jobs per second": ("jobs_per_s",),
    "CPU per job, engine and PostgreSQL": ("engine_cpu_s_per_1000", "postgres_cpu_s_per_1000"),
}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    arguments.add_argument("--blocks", type=int, default=16)
    arguments.add_argument("--slice-seconds", type=float, default=3.0)
    tabs = arguments.add_mutually_exclusive_group()
    tabs.add_argument("--chromium", action="store_true")
    tabs.add_argument("--aa", action="store_true")
    arguments.add_argument("--tabs-of", type=int, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.tabs_of is not None:
        _be_tabs(chosen.tabs_of)
    console = Console(stderr=True)
    print_line()
    open_tabs = nullcontext if chosen.aa else _chromium if chosen.chromium else _tabs
    ratios: dict[str, list[float]] = {title: [] for title in FIGURES}
    with ExitStack() as stack:
        options = Options()
        deployment = stack.enter_context(engine(stack.enter_context(work_directory(options.work_dir)), {}))
        assert deployment.dsn is not None
        database = Database(deployment.dsn)
        stack.callback(database.close)
        bench = Bench(deployment, database, options, lambda share, text: None)
        load = stack.enter_context(_steady(bench))
        for number in range(chosen.blocks):
            block = _block(bench, load, ORDERS[number % 2], chosen.slice_seconds, open_tabs)
            for title, ratio in block.items():
                ratios[title].append(ratio)
            console.print(
                f"block {number + 1}: {'; '.join(_described(*row) for row in ratios.items())}", highlight=False
            )
        assert not load.counts()[Count.ERRORS], bench.problems
    found = estimate(ratios["jobs per second"])
    return 1 if found is not None and found.high < 1 - LOWER_MAX else 0


@contextmanager
def _steady(bench: Bench) -> Generator[Generators]:
    """Instances that start and complete until the block is left, once a few thousand have."""
    workflow = linear(bench.new_tag(), JOBS_PER_INSTANCE)
    bench.upload(workflow)
    body = workflow.start_body(variables_of(START_VARIABLES_BYTES))
    starts = StartPlan(connections=4, instances=ENDLESS, body=body, in_flight=IN_FLIGHT)
    with bench.load(starts, single_workers(workflow), processes=1) as load:
        load.begin()
        bench.wait_count(load, Count.COMPLETED, WARM_JOBS)
        yield load


def _block(
    bench: Bench, load: Generators, order: str, slice_s: float, open_tabs: Callable[[int], AbstractContextManager[None]]
) -> dict[str, float]:
    """With tabs against without, by figure."""
    slices: dict[str, list[dict[str, float]]] = {"A": [], "B": []}
    for which, alike in groupby(order):
        with open_tabs(bench.deployment.port) if which == "B" else nullcontext():
            for _ in alike:
                before = bench.meter.snapshot(load)
                time.sleep(slice_s)
                slices[which].append(per_item(before, bench.meter.snapshot(load), Count.COMPLETED, "fast_path"))
                load.check()
    return {title: _sum(slices["B"], names) / _sum(slices["A"], names) for title, names in FIGURES.items()}


def _sum(windows: Sequence[dict[str, float]], names: Sequence[str]) -> float:
    return sum(window.get(name, 0.0) for window in windows for name in names)


def _described(title: str, ratios: Sequence[float]) -> str:
    found: Estimate | None = estimate(ratios)
    if found is None:
        return f"{title} {median(list(ratios)):.3f} (too few blocks for an interval)"
    return f"{title} {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"


@contextmanager
def _tabs(port: int) -> Generator[None]:
    command = [sys.executable, "-m", "benchmarks.console_tabs", "--tabs-of", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n", "the tabs were not told an overview"
        yield
        assert process.poll() is None, "a tab ended"
    finally:
        process.kill()
        process.wait()


@contextmanager
def _chromium(port: int) -> Generator[None]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context()
        for _ in range(TABS):
            page = context.new_page()
            page.goto(f"http://127.0.0.1:{port}/console/")
            page.get_by_text("Needs attention").wait_for(timeout=OPENED_TIMEOUT_S * 1_000)
        yield
        browser.close()


def _be_tabs(port: int) -> None:
    """Asks until it is killed; says so when all have seen an overview."""
    opened = threading.Barrier(TABS + 1, timeout=OPENED_TIMEOUT_S)
    for _ in range(TABS):
        threading.Thread(target=_watch, args=(port, opened), daemon=True).start()
        threading.Thread(target=_watch_port, args=(port,), daemon=True).start()
    opened.wait()
    print("open", flush=True)
    threading.Event().wait()


def _watch(port: int, opened: threading.Barrier) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    tag = ""
    while True:
        query = {"overview": "true", "range": "15m", **({"since": tag} if tag else {})}
        connection.request("GET", f"/v1/watch?{urlencode(query)}")
        response = connection.getresponse()
        text = response.read()
        if response.status == http.client.NO_CONTENT:
            continue
        assert response.status == http.client.OK, text
        if not tag:
            opened.wait()
        tag = json.loads(text)["tag"]


def _watch_port(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while True:
        connection.request("GET", "/readyz")
        connection.getresponse().read()
        time.sleep(READY_EVERY_S)


if __name__ == "__main__":
    sys.exit(main())
