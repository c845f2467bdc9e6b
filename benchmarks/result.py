"""The result file: everything that was measured and under which circumstances, as JSON. Version it when it changes.

Figures are named with their unit; `figures.py` knows how to show them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

SCHEMA = 1


class CommitRate(msgspec.Struct, kw_only=True):
    """Bare insert-commits of one PostgreSQL."""

    connections: int
    commits_per_s: float
    client_cpu_s_per_1000: float


class Calibration(msgspec.Struct, kw_only=True):
    """What the database and its disk did at best, at the time of the run."""

    commit_p50_ms: float
    commit_p99_ms: float
    rates: list[CommitRate]

    def rate(self, connections: int) -> float | None:
        """Commits per second with that many connections."""
        return next((rate.commits_per_s for rate in self.rates if rate.connections == connections), None)


class Machine(msgspec.Struct, kw_only=True):
    cpus: int
    cpu_model: str
    memory_bytes: int
    kernel: str
    python: str
    disk: str


class Series(msgspec.Struct, kw_only=True):
    """Something over time within one run: points of (seconds since its start, value)."""

    name: str
    unit: str
    points: list[tuple[float, float]]


class Run(msgspec.Struct, kw_only=True):
    """One repetition."""

    figures: dict[str, float]
    seconds: float
    calibration: Calibration | None = None
    series: list[Series] = []
    problems: list[str] = []


class Bound(msgspec.Struct, kw_only=True):
    """What a figure has to reach. ``row`` is the row of the specification."""

    figure: str
    row: str
    at_most: float | None = None
    at_least: float | None = None

    def met_by(self, value: float) -> bool:
        if self.at_most is not None and value > self.at_most:
            return False
        return self.at_least is None or value >= self.at_least


class ScenarioResult(msgspec.Struct, kw_only=True):
    """One scenario: its runs and their medians."""

    name: str
    title: str
    parameters: dict[str, str | int | float | bool]
    runs: list[Run]
    figures: dict[str, float]
    bounds: list[Bound] = []

    @property
    def problems(self) -> list[str]:
        return [problem for run in self.runs for problem in run.problems]


class Result(msgspec.Struct, kw_only=True):
    """One call of the benchmarks."""

    schema: int = SCHEMA
    began_at: str
    seconds: float
    version: str
    commit: str
    command: str
    machine: Machine
    engine_settings: dict[str, str]
    postgres_settings: dict[str, str]
    calibration: Calibration | None
    scenarios: list[ScenarioResult]

    def scenario(self, name: str) -> ScenarioResult | None:
        return next((scenario for scenario in self.scenarios if scenario.name == name), None)


class UnreadableResult(Exception):
    """The file is no result of the benchmarks, or of another version of them."""


def write(result: Result, path: Path) -> None:
    """Write the file, indented: people look into it, and differences stay readable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def read(path: Path) -> Result:
    """Raises UnreadableResult."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except (OSError, msgspec.MsgspecError) as error:
        raise UnreadableResult(f"{path}: {error}") from error
    if result.schema != SCHEMA:
        raise UnreadableResult(f"{path}: written as version {result.schema}, this reads {SCHEMA}")
    return result


def median(values: list[float]) -> float:
    """The middle value; of an even number the lower of the two, so that it is one that was measured."""
    return sorted(values)[(len(values) - 1) // 2]


def medians(runs: list[Run]) -> dict[str, float]:
    """Each figure's median over the runs that have it, in the order of the first."""
    names = dict.fromkeys(name for run in runs for name in run.figures)
    return {name: median([run.figures[name] for run in runs if name in run.figures]) for name in names}
