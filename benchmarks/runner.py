"""Runs the chosen scenarios one after the other, each on an engine of its own if it may, and gathers the result.

A scenario that can't run on this deployment is left out and told; one that fails ends the run, as figures beside it
would mean little. Keeps what was measured so far if the user interrupts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from benchmarks import surroundings
from benchmarks.bench import Bench, Options, Unsuitable
from benchmarks.calibration import calibrate, calibration_of_now
from benchmarks.database import Database
from benchmarks.deployment import Deployment, engine, work_directory
from benchmarks.progress import Display
from benchmarks.result import Calibration, Result, Run, ScenarioResult, medians
from benchmarks.scenarios import Scenario
from benchmarks.units import in_units

OnScenario = Callable[[ScenarioResult], None]


@dataclass
class Plan:
    """What is to be run where. ``existing`` None: on engines of our own."""

    scenarios: Sequence[Scenario]
    options: Options
    repeat: int
    existing: Deployment | None = None
    command: str = ""


@dataclass
class Gathered:
    """Grows as scenarios end."""

    calibration: Calibration | None = None
    postgres_settings: dict[str, str] = field(default_factory=dict[str, str])
    disk: str = ""
    scenarios: list[ScenarioResult] = field(default_factory=list[ScenarioResult])


def run(plan: Plan, display: Display, on_scenario: OnScenario) -> Result:
    """Run the plan. Raises what a scenario raised; an interrupt ends it with what there is."""
    began, clock = datetime.now(UTC), time.monotonic()
    gathered = Gathered()
    surroundings.allow_open_files()
    try:
        for number, scenario in enumerate(plan.scenarios, 1):
            display.begin(scenario.name, number, len(plan.scenarios))
            _run_scenario(plan, scenario, display, gathered, on_scenario)
    except KeyboardInterrupt:
        display.print_line("interrupted: the scenarios that were completed are kept")
    return Result(
        began_at=began.isoformat(timespec="seconds").replace("+00:00", "Z"),
        seconds=time.monotonic() - clock,
        version=surroundings.version(),
        commit=surroundings.commit(),
        command=plan.command,
        machine=surroundings.machine(gathered.disk),
        engine_settings=plan.options.settings,
        postgres_settings=gathered.postgres_settings,
        calibration=gathered.calibration,
        scenarios=gathered.scenarios,
    )


def _run_scenario(
    plan: Plan, scenario: Scenario, display: Display, gathered: Gathered, on_scenario: OnScenario
) -> None:
    if scenario.own_engine and plan.existing is not None:
        display.print_line(f"{scenario.name} is left out: it starts engines itself, which --url forbids")
        return
    runs: list[Run] = []
    try:
        with _bench(plan, display) as bench:
            _calibrate(plan, bench, display, gathered)
            for repetition in range(1 if scenario.long else plan.repeat):
                display.repetition(repetition + 1, 1 if scenario.long else plan.repeat)
                now = calibration_of_now(bench.deployment.dsn)
                made = scenario.run(bench)
                made.figures |= {**in_units(made.figures, now), **now}
                runs.append(made)
    except Unsuitable as reason:
        display.print_line(f"{scenario.name} is left out: {reason}")
        return
    result = ScenarioResult(
        name=scenario.name,
        title=scenario.title,
        parameters=dict(scenario.parameters),
        runs=runs,
        figures=medians(runs),
        bounds=list(scenario.bounds),
    )
    gathered.scenarios.append(result)
    on_scenario(result)


def _calibrate(plan: Plan, bench: Bench, display: Display, gathered: Gathered) -> None:
    """Once, on the first engine that has a database."""
    if bench.database is None or bench.deployment.dsn is None or gathered.calibration is not None:
        return
    display.update(0.0, "calibration: bare commits of this PostgreSQL")
    gathered.calibration = calibrate(bench.deployment.dsn, plan.options.calibration_s)
    gathered.postgres_settings = bench.database.settings()
    gathered.disk = bench.deployment.disk


@contextmanager
def _bench(plan: Plan, display: Display) -> Generator[Bench]:
    with ExitStack() as stack:
        deployment = plan.existing
        if deployment is None:
            display.update(0.0, "starting an engine")
            directory = stack.enter_context(work_directory(plan.options.work_dir))
            deployment = stack.enter_context(engine(directory, plan.options.settings))
        database = None
        if deployment.dsn is not None:
            database = Database(deployment.dsn)
            stack.callback(database.close)
        yield Bench(deployment, database, plan.options, display.update)
