"""The command line: `python -m chaos [ATTACK…]`, `soak`, `simulate`, `orders`, `families` and `list`.

Exit code 0 when every guarantee held, 1 when one did not (or an attack could not be carried out), 2 for wrong options.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import msgspec
import trio
import typer
from rich.console import Console

from chaos import families, orders, runner
from chaos import soak as soaking
from chaos.faults import FAULTS
from chaos.runner import Attack, Report, new_directory, remove_directory

DEFAULT_OUTPUT = Path("chaos/results")
DEFAULT_WORK_DIR = Path("/var/tmp")
"""On a disk nearly everywhere, which /tmp is not."""
SECONDS = 15.0
EVERYTHING = "everything"

app = typer.Typer(
    name="chaos",
    help="Attacks running engines and checks that nothing is lost and nothing is done twice.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(words: list[str]) -> None:
    """Run the command line; `run` is what no command means. Ends the process."""
    if not words or words[0] not in {"run", "list", "soak", "simulate", "orders", "families", "-h", "--help"}:
        words = ["run", *words]
    app(words, prog_name="chaos")


@app.command("list")
def list_command() -> None:
    """The attacks."""
    console = Console()
    for name, fault in FAULTS.items():
        console.print(f"{name:22} {fault.sentence}", highlight=False)
    console.print(f"{EVERYTHING:22} all of them, mixed")


@app.command("run")
def run_command(
    names: Annotated[list[str] | None, typer.Argument(metavar="[ATTACK]...", help="Of `list`; by default all.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long each attack goes on.")] = SECONDS,
    seed: Annotated[str, typer.Option(help="Of the attack and of the load; by default a new one.")] = "",
    rate: Annotated[float, typer.Option(min=0.1, help="Instances started per second.")] = runner.RATE,
    replay: Annotated[Path | None, typer.Option(help="A report: inject its faults again.")] = None,
    work_dir: Annotated[Path, typer.Option(help="Where PostgreSQL's data goes meanwhile.")] = DEFAULT_WORK_DIR,
    output: Annotated[Path, typer.Option(help="Where the reports go.")] = DEFAULT_OUTPUT,
    keep: Annotated[bool, typer.Option(help="Keep the directory (database, logs, journals) of every attack.")] = False,
) -> None:
    """Attack, and judge by the guarantees."""
    console = Console()
    unknown = [name for name in names or () if name not in FAULTS and name != EVERYTHING]
    if unknown:
        console.print(f"no attack is called {', '.join(unknown)}; `python -m chaos list` names them")
        raise typer.Exit(2)
    struck = None
    if replay is not None:
        recorded = msgspec.json.decode(replay.read_bytes(), type=Report)
        chosen, struck = [recorded.attack], recorded.struck
    else:
        chosen = runner.attacks(names or [*FAULTS, EVERYTHING], seed or f"{random.randrange(16**6):06x}", seconds, rate)
    output.mkdir(parents=True, exist_ok=True)
    _end_in_order()
    bad = [attack.name for attack in chosen if not _run_one(attack, console, work_dir, output, keep, struck)]
    raise typer.Exit(1 if bad else 0)


@app.command("simulate")
def simulate_command(
    seconds: Annotated[float, typer.Option(min=1, help="How long.")] = 60,
    seed: Annotated[int, typer.Option(help="Of the first world; the others count on from it.")] = 0,
    histories: Annotated[int, typer.Option(min=0, help="So many instead, however long it takes.")] = 0,
) -> None:
    """Thousands of histories a minute in memory, in virtual time, against the token game (`tests/simulation`)."""
    from tests.simulation.__main__ import run_worlds
    from tests.simulation.simulate import HISTORIES

    run_worlds(seed, seconds, -(-histories // HISTORIES))


@app.command("soak")
def soak_command(
    minutes: Annotated[float, typer.Option(min=0.5, help="How long.")] = 30,
    seed: Annotated[str, typer.Option(help="Of the attack and of the load; by default a new one.")] = "",
    rate: Annotated[float, typer.Option(min=0.1, help="Instances started per second.")] = soaking.RATE,
    work_dir: Annotated[Path, typer.Option(help="Where PostgreSQL's data goes meanwhile.")] = DEFAULT_WORK_DIR,
    output: Annotated[Path, typer.Option(help="Where the report goes.")] = DEFAULT_OUTPUT,
) -> None:
    """Mixed load with faults for long: are memory, latency and tables flat?"""
    _end_in_order()
    console = Console()
    seed = seed or f"{random.randrange(16**6):06x}"
    output.mkdir(parents=True, exist_ok=True)
    directory = new_directory(work_dir, "soak")
    good = False
    try:
        found = trio.run(soaking.soak, directory, seed, minutes * 60, rate)
        good = found.good
        _print_report(found.report, console)
        for trend in found.trends:
            word = "flat" if trend.flat else "NOT FLAT"
            console.print(f"  {trend.what}: {trend.first:g} → {trend.last:g}, {word}", highlight=False, markup=False)
        (output / f"soak-{seed}.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    finally:
        if good:
            remove_directory(directory)
        else:
            console.print(f"  kept: {directory}", highlight=False)
    raise typer.Exit(0 if good else 1)


@app.command("orders")
def orders_command(
    seconds: Annotated[float, typer.Option(min=1, help="How long orders are placed.")] = 60,
    seed: Annotated[str, typer.Option(help="Of the attack and of the orders; by default a new one.")] = "",
    rate: Annotated[float, typer.Option(min=0.1, help="Orders per second.")] = orders.RATE,
    executors: Annotated[int, typer.Option(min=1, help="Processes that execute them.")] = orders.EXECUTORS,
    work_dir: Annotated[Path, typer.Option(help="Where PostgreSQL's data goes meanwhile.")] = DEFAULT_WORK_DIR,
) -> None:
    """Durable workflows: do orders end shipped or undone, whatever is killed?"""
    _end_in_order()
    directory = new_directory(work_dir, "orders")
    _judge(trio.run(orders.attack, directory, seed or _new_seed(), seconds, rate, executors), directory)


@app.command("families")
def families_command(
    seconds: Annotated[float, typer.Option(min=1, help="How long families are started.")] = 60,
    seed: Annotated[str, typer.Option(help="Of the attack and of the families; by default a new one.")] = "",
    rate: Annotated[float, typer.Option(min=0.1, help="Families per second.")] = families.RATE,
    executors: Annotated[int, typer.Option(min=1, help="Processes that execute them.")] = orders.EXECUTORS,
    work_dir: Annotated[Path, typer.Option(help="Where PostgreSQL's data goes meanwhile.")] = DEFAULT_WORK_DIR,
) -> None:
    """Runs and instances that call each other: do all end as undisturbed ones, whatever is killed?"""
    _end_in_order()
    directory = new_directory(work_dir, "families")
    _judge(trio.run(families.attack, directory, seed or _new_seed(), seconds, rate, executors), directory)


def _new_seed() -> str:
    return f"{random.randrange(16**6):06x}"


def _judge(found: families.FamiliesReport | orders.OrdersReport, directory: Path) -> None:
    """Print it, and end with its exit code; the directory is kept where something is broken."""
    console = Console()
    console.print(msgspec.json.format(msgspec.json.encode(found)).decode(), highlight=False, markup=False)
    if found.broken:
        console.print(f"  kept: {directory}", highlight=False)
    else:
        remove_directory(directory)
    raise typer.Exit(1 if found.broken else 0)


def _end_in_order() -> None:
    """Whoever terminates us ends all that we started: as Ctrl-C, which Trio takes at a safe moment."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, interrupt)


def _run_one(
    attack: Attack, console: Console, work_dir: Path, output: Path, keep: bool, struck: list[runner.Struck] | None
) -> bool:
    directory = new_directory(work_dir, attack.name)
    good = False
    try:
        report = trio.run(lambda: runner.run(attack, directory, replay=struck))
        good = not report.broken
        _print_report(report, console)
        path = output / f"{attack.name}-{attack.seed}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        if not good:
            console.print(f"  again: python -m chaos --replay {path}", highlight=False)
    finally:
        if good and not keep:
            remove_directory(directory)
        else:
            console.print(f"  kept: {directory}", highlight=False)
    return good


def _print_report(report: Report, console: Console) -> None:
    word = "[green]held[/green]" if not report.broken else "[red]BROKEN[/red]"
    if not report.struck and report.left_out:
        word = "[yellow]NOT RUN: needs root to mount a small file system[/yellow]"
    done = ", ".join(f"{count} {what}" for what, count in {**report.checked, **report.counts}.items())
    console.print(
        f"{report.attack.name} (seed {report.attack.seed}, {report.took_s:g} s, settled in {report.settled_s:g} s):"
        f" {word}. {done}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    for sentence in report.broken[: runner.SHOWN_MAX]:
        console.print(f"  {sentence}", highlight=False, markup=False, soft_wrap=True)
    if len(report.broken) > runner.SHOWN_MAX:
        console.print(f"  … and {len(report.broken) - runner.SHOWN_MAX} more")
