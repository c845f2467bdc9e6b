"""What the console's overview, open in three tabs, costs an engine at work: jobs per second and CPU per job.

    PYTHONPATH=src python -m benchmarks.console_tabs [--blocks 8] [--jobs 12000] [--chromium]

One engine, windows of `single-3` without and with tabs in turn (ABBA, BAAB), so that what the machine does meanwhile
meets both; a block of four gives one ratio, and their middle and interval are those of `benchmarks.pair`. A tab is a
process that asks what the page asks: the parked `GET /v1/watch` with the overview, and `GET /readyz` every two seconds.
Each of the three asks for itself, as three browsers would; tabs of one browser ask once for all. `--chromium` opens the
page in one browser instead, whose own work shares the machine's processors. Exit code 1 when throughput is more than
2 % lower for sure.
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
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final
from urllib.parse import urlencode

from rich.console import Console

from benchmarks.bench import Bench, Options
from benchmarks.database import Database
from benchmarks.deployment import engine, work_directory
from benchmarks.pair import ORDERS, Estimate, estimate
from benchmarks.result import median
from benchmarks.scenarios import SCENARIOS

TABS: Final = 3
LOWER_MAX: Final = 0.02
READY_EVERY_S: Final = 2.0
OPENED_TIMEOUT_S: Final = 60.0
FIGURES: Final = {
    "jobs per second": ("jobs_per_s",),
    "CPU per job, engine and PostgreSQL": ("engine_cpu_s_per_1000", "postgres_cpu_s_per_1000"),
}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    arguments.add_argument("--blocks", type=int, default=8)
    arguments.add_argument("--jobs", type=int, default=12_000)
    arguments.add_argument("--chromium", action="store_true")
    arguments.add_argument("--tabs-of", type=int, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.tabs_of is not None:
        _be_tabs(chosen.tabs_of)
    console = Console(stderr=True)
    ratios: dict[str, list[float]] = {title: [] for title in FIGURES}
    with ExitStack() as stack:
        options = Options(items=chosen.jobs)
        deployment = stack.enter_context(engine(stack.enter_context(work_directory(options.work_dir)), {}))
        assert deployment.dsn is not None
        database = Database(deployment.dsn)
        stack.callback(database.close)
        bench = Bench(deployment, database, options, lambda share, text: None)
        SCENARIOS["single-3"].run(bench)  # caches, plans, the first pages of the tables
        for number in range(chosen.blocks):
            for title, ratio in _block(bench, deployment.port, ORDERS[number % 2], chromium=chosen.chromium).items():
                ratios[title].append(ratio)
            console.print(f"block {number + 1}: {'; '.join(_told(*row) for row in ratios.items())}", highlight=False)
    found = estimate(ratios["jobs per second"])
    return 1 if found is not None and found.high < 1 - LOWER_MAX else 0


def _block(bench: Bench, port: int, order: str, *, chromium: bool) -> dict[str, float]:
    """With tabs against without, by figure."""
    windows: dict[str, list[dict[str, float]]] = {"A": [], "B": []}
    for which in order:
        with _tabs(port, chromium=chromium) if which == "B" else ExitStack():
            run = SCENARIOS["single-3"].run(bench)
        assert not run.figures.get("errors"), run.problems
        windows[which].append(run.figures)
    return {title: _sum(windows["B"], names) / _sum(windows["A"], names) for title, names in FIGURES.items()}


def _sum(windows: Sequence[dict[str, float]], names: Sequence[str]) -> float:
    return sum(window.get(name, 0.0) for window in windows for name in names)


def _told(title: str, ratios: Sequence[float]) -> str:
    found: Estimate | None = estimate(ratios)
    if found is None:
        return f"{title} {median(list(ratios)):.3f} (too few blocks for an interval)"
    return f"{title} {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"


@contextmanager
def _tabs(port: int, *, chromium: bool) -> Generator[None]:
    if chromium:
        with _chromium(port):
            yield
        return
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
        threading.Thread(target=_look, args=(port,), daemon=True).start()
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


def _look(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while True:
        connection.request("GET", "/readyz")
        connection.getresponse().read()
        time.sleep(READY_EVERY_S)


if __name__ == "__main__":
    sys.exit(main())
