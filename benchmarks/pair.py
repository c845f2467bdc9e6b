"""Two checkouts in turn: what a job costs in the new one against the old one, and how sure that is.

Both engines run side by side, each on a PostgreSQL of its own, and one generator (ours) drives them in short windows,
old, new, new, old, then new, old, old, new: what the machine does meanwhile meets both. What counts is CPU (user and
system, of the engine's processes and PostgreSQL's) and WAL per job, never time. A block of four windows gives one
ratio; their middle and its confidence interval are by Wilcoxon's signed ranks, which a few odd windows do not move.
Engines are started anew now and then, as no two processes are alike.

Kept in a file after each block: a call that has no more time is gone on with by the next one.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.bench import Bench, Options
from benchmarks.calibration import calibration_of_now
from benchmarks.compiled import compiled
from benchmarks.database import Database
from benchmarks.deployment import engine, work_directory
from benchmarks.figures import describe, show
from benchmarks.progress import Display
from benchmarks.result import UnreadableResult, median
from benchmarks.scenarios import Scenario

BLOCKS_PER_START: Final = 4
BLOCKS_MIN: Final = 8
"""Fewer give no interval."""
CONFIDENCE_Z: Final = 1.96
ORDERS: Final = ("ABBA", "BAAB")
SHOWN: Final = {
    "engine and PostgreSQL": ("engine_cpu_s_per_1000", "postgres_cpu_s_per_1000"),
    "engine": ("engine_cpu_s_per_1000",),
    "PostgreSQL": ("postgres_cpu_s_per_1000",),
    "WAL": ("wal_bytes_per_item",),
    "jobs a second": ("jobs_per_s",),
    "starts a second": ("instances_per_s",),
    "start → completed, p50": ("round_p50_ms",),
    "start → completed, p99": ("round_p99_ms",),
}
"""What is compared: sums of figures, where both sides have all of them."""
JUDGED: Final = ("engine and PostgreSQL", "jobs a second", "starts a second", "start → completed, p50")
"""The first that both sides have; time is for those whose CPU can't be seen, and for `latency`."""


class PairFailed(Exception):
    """The pair can't be measured; the text says why."""


class Side(msgspec.Struct, kw_only=True, frozen=True):
    """A checkout."""

    path: str
    commit: str


class Block(msgspec.Struct, kw_only=True):
    """Two windows of each, and what the CPU did at that moment."""

    at: str
    order: str
    old: list[dict[str, float]]
    new: list[dict[str, float]]
    units: dict[str, float]


class Pairs(msgspec.Struct, kw_only=True):
    """The file."""

    schema: int = 1
    scenario: str
    items: int
    old: Side
    new: Side
    blocks: list[Block] = msgspec.field(default_factory=list[Block])


Opened = Callable[[], AbstractContextManager[tuple[Bench, Bench]]]
"""Both sides, ready."""


class Estimate(NamedTuple):
    """New against old."""

    ratio: float
    low: float
    high: float

    @property
    def within(self) -> float:
        """Half of the interval, as a share."""
        return (self.high - self.low) / 2


def side(path: Path, *, compiled_in: Path | None = None) -> Side:
    """A checkout as it is now; ``compiled_in``: with its hot path compiled, which is kept there. Raises PairFailed."""
    if not (path / "src" / "penstock").is_dir():
        raise PairFailed(f"{path} is no checkout: there is no src/penstock in it")
    commit = _git(path, "rev-parse", "--short=10", "HEAD") or "no commit"
    measured = ("--", "src", "tools/compiled.py")
    changes = _git(path, "diff", "HEAD", *measured)
    for name in _git(path, "ls-files", "--others", "--exclude-standard", *measured).splitlines():
        changes += name + (path / name).read_text(errors="replace")
    if changes:
        commit += "+" + hashlib.sha256(changes.encode()).hexdigest()[:8]
    if compiled_in is not None:
        commit += "-compiled"
        try:
            # Another Python would find none of its modules there, and run the sources beside them.
            path = compiled(path, compiled_in / f"{commit}-{sys.implementation.cache_tag}")
        except subprocess.CalledProcessError as error:
            raise PairFailed(f"{path} was not compiled: {error}") from error
    return Side(path=str(path.resolve()), commit=commit)


def _git(path: Path, *words: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    return subprocess.run([git, "-C", str(path), *words], capture_output=True, text=True, check=False).stdout.strip()


def open_pairs(file: Path, scenario: Scenario, items: int, old: Side, new: Side) -> Pairs:
    """What was measured before, or nothing yet. Raises PairFailed when the file is about something else."""
    if not file.exists():
        return Pairs(scenario=scenario.name, items=items, old=old, new=new)
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Pairs)
    except (OSError, msgspec.MsgspecError) as error:
        raise UnreadableResult(f"{file}: {error}") from error
    was = (found.scenario, found.items, found.old.commit, found.new.commit)
    if was != (wanted := (scenario.name, items, old.commit, new.commit)):
        raise PairFailed(f"{file} is about {_about(was)}, not about {_about(wanted)}: give another --state")
    return found


def _about(what: tuple[str, int, str, str]) -> str:
    return f"{what[0]} with {what[1]} items, {what[2]} against {what[3]}"


def ratios(pairs: Pairs, figures: Sequence[str]) -> list[float]:
    """New against old, by block."""
    found: list[float] = []
    for block in pairs.blocks:
        if any(name not in window for window in (*block.old, *block.new) for name in figures):
            continue
        old = sum(_sum(window, figures) for window in block.old)
        new = sum(_sum(window, figures) for window in block.new)
        if old > 0 and new > 0:
            found.append(new / old)
    return found


def estimate(values: Sequence[float]) -> Estimate | None:
    """The middle of the ratios (Hodges and Lehmann) with its interval of 95 % (Wilcoxon); None for too few."""
    count = len(values)
    if count < BLOCKS_MIN:
        return None
    logs = [math.log(value) for value in values]
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(count) for j in range(i, count))
    spread = CONFIDENCE_Z * math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    outside = max(0, math.floor(len(walsh) / 2 - spread))
    middle = (walsh[(len(walsh) - 1) // 2] + walsh[len(walsh) // 2]) / 2
    return Estimate(math.exp(middle), math.exp(walsh[outside]), math.exp(walsh[-1 - outside]))


def judged(pairs: Pairs) -> tuple[str, list[float]]:
    """By what, and its ratios."""
    found = {title: ratios(pairs, SHOWN[title]) for title in JUDGED}
    title = next((title for title, values in found.items() if values), JUDGED[0])
    return title, found[title]


def is_reported(pairs: Pairs, within: float) -> bool:
    """Whether the interval is small enough."""
    found = estimate(judged(pairs)[1])
    return found is not None and found.within <= within


def measure(
    pairs: Pairs, file: Path, scenario: Scenario, opened: Opened, display: Display, *, within: float, seconds: float,
    blocks_max: int,
) -> None:  # fmt: skip
    """Add blocks until the interval is small enough, the time is over, or there are so many blocks."""
    until = time.monotonic() + seconds
    longest_s = 0.0
    while len(pairs.blocks) < blocks_max and not is_reported(pairs, within):
        display.update(0.0, "starting the engines")
        with opened() as (old, new):
            for bench in (old, new):  # caches, plans, the first pages of the tables
                scenario.run(bench)
            for _ in range(BLOCKS_PER_START):
                began = time.monotonic()
                if began + longest_s > until:
                    return
                pairs.blocks.append(_block(scenario, old, new, ORDERS[len(pairs.blocks) % 2]))
                _write(pairs, file)
                longest_s = max(longest_s, time.monotonic() - began)
                display.print_line(f"block {len(pairs.blocks)}: {_last(judged(pairs)[1])}")
                if len(pairs.blocks) >= blocks_max or is_reported(pairs, within):
                    return


def _block(scenario: Scenario, old: Bench, new: Bench, order: str) -> Block:
    units = calibration_of_now(new.deployment.dsn)
    windows: dict[str, list[dict[str, float]]] = {"A": [], "B": []}
    for which in order:
        run = scenario.run(old if which == "A" else new)
        if run.problems or run.figures.get("errors"):
            raise PairFailed(f"{'old' if which == 'A' else 'new'}: {'; '.join(run.problems) or 'errors'}")
        windows[which].append(run.figures)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return Block(at=at, order=order, old=windows["A"], new=windows["B"], units=units)


@contextmanager
def both(pairs: Pairs, options: Options) -> Generator[tuple[Bench, Bench]]:
    """Engines of the two checkouts, each on a PostgreSQL of its own."""
    with ExitStack() as stack:
        benches: list[Bench] = []
        for each in (pairs.old, pairs.new):
            directory = stack.enter_context(work_directory(options.work_dir))
            deployment = stack.enter_context(engine(directory, options.settings, source=Path(each.path)))
            assert deployment.dsn is not None
            database = Database(deployment.dsn)
            stack.callback(database.close)
            benches.append(Bench(deployment, database, options, lambda share, text: None))
        yield benches[0], benches[1]


def _write(pairs: Pairs, file: Path) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(pairs), indent=1) + b"\n")
    os.replace(new, file)


def _middle(windows: list[dict[str, float]], names: Sequence[str]) -> float:
    return median([_sum(window, names) for window in windows])


def _sum(window: dict[str, float], names: Sequence[str]) -> float:
    return sum(window.get(name, 0.0) for name in names)


def _line(found: Estimate) -> str:
    return f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"


def _last(values: list[float]) -> str:
    found = estimate(values)
    return _line(found) if found else f"{values[-1]:.3f}" if values else "nothing that both sides have"


def _print_calibration(console: Console, pairs: Pairs) -> None:
    """What the machine did beside each block, and CPU in units of it."""
    for title in JUDGED[:1] if ratios(pairs, SHOWN[JUDGED[0]]) else ():
        old, new = (
            median([_sum(window, SHOWN[title]) * 1e3 / block.units["echo_cpu_us"]
                    for block in pairs.blocks for window in getattr(block, side)])
            for side in ("old", "new")
        )  # fmt: skip
        console.print(f"{title}, in echoes a job: {old:.1f}, {new:.1f}", highlight=False)
    for name in dict.fromkeys(name for block in pairs.blocks for name in block.units):
        values = [block.units[name] for block in pairs.blocks if name in block.units]
        span = f"({min(values):,.1f} to {max(values):,.1f})"
        console.print(f"{describe(name).label}: {show(name, median(values))} {span}", highlight=False)


def print_pairs(console: Console, pairs: Pairs, *, within: float, blocks_max: int) -> bool:
    """The table and the verdict; True when the interval is small enough."""
    console.print(
        f"{pairs.scenario}, {pairs.items} jobs a window, {len(pairs.blocks)} blocks of four; "
        f"old {pairs.old.commit}, new {pairs.new.commit}",
        highlight=False,
    )
    table = Table(box=None)
    for column in ("per job", "old", "new", "new/old", "95 %"):
        table.add_column(column, justify="left" if column == "per job" else "right")
    for title, names in SHOWN.items():
        values = ratios(pairs, names)
        if not values:
            continue
        found = estimate(values)
        table.add_row(
            title,
            show(names[0], _middle([window for block in pairs.blocks for window in block.old], names)),
            show(names[0], _middle([window for block in pairs.blocks for window in block.new], names)),
            f"{found.ratio if found else median(values):.3f}",
            f"{found.low:.3f} – {found.high:.3f}" if found else "",
        )
    console.print(table)
    _print_calibration(console, pairs)
    title, values = judged(pairs)
    found = estimate(values)
    if found is not None and found.within <= within:
        console.print(f"{title}: {found.ratio:.3f} ± {found.within:.1%}", highlight=False)
        return True
    now = "fewer than 8 blocks" if found is None else f"± {found.within:.1%}"
    if len(pairs.blocks) >= blocks_max:
        console.print(f"the machine is too noisy to tell: {now} after {blocks_max} blocks", highlight=False)
    else:
        console.print(f"not told yet ({now}, wanted ± {within:.0%}): the same command goes on", highlight=False)
    return False
