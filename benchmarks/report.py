"""The result as people read it: tables on the terminal and as Markdown, with what each figure has to reach."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figures import describe, show
from benchmarks.pair import estimate
from benchmarks.result import Bound, Calibration, Result, ScenarioResult

HEADLINE = (
    "jobs_per_s",
    "instances_per_s",
    "engine_cpu_s_per_1000",
    "postgres_cpu_s_per_1000",
    "generator_cpu_s_per_1000",
    "wal_bytes_per_item",
    "write_commits_per_item",
    "mean_batch",
)
"""Columns of the comparison of throughput scenarios; everything else is listed per scenario."""
WITHIN = 0.03
"""Half of a ratio's interval, which it should reach."""
NOISY = 1.25
"""Fixed work that took so much more in one run than in another tells of others on this machine."""


def bound_text(bound: Bound) -> str:
    """What is to be reached, with its unit."""
    parts: list[str] = []
    if bound.at_least is not None:
        parts.append(f"≥ {show(bound.figure, bound.at_least)}")
    if bound.at_most is not None:
        parts.append(f"≤ {show(bound.figure, bound.at_most)}")
    return " and ".join(parts)


def spread(scenario: ScenarioResult, figure: str) -> str:
    """Lowest and highest over the runs, when there are several."""
    values = [run.figures[figure] for run in scenario.runs if figure in run.figures]
    if len(values) < 2:
        return ""
    digits = describe(figure).digits
    return f"{min(values):,.{digits}f} – {max(values):,.{digits}f}"


def notes(scenario: ScenarioResult) -> list[str]:
    """The interval of each ratio that was measured often enough, and whether the machine held still meanwhile."""
    found: list[str] = []
    for name in scenario.figures:
        reported = estimate([run.figures[name] for run in scenario.runs if run.figures.get(name)])
        if describe(name).unit == "×" and reported is not None:
            noisy = "" if reported.within <= WITHIN else f": not within ± {WITHIN:.0%}"
            found.append(
                f"{describe(name).label}: {reported.ratio:.3f} ({reported.low:.3f} to {reported.high:.3f}, 95 %){noisy}"
            )
    for name in ("loop_cpu_ms", "echo_cpu_us"):
        values = [run.figures[name] for run in scenario.runs if name in run.figures]
        if values and max(values) > min(values) * NOISY:
            found.append(f"the machine is too noisy to tell: {describe(name).label} was {spread(scenario, name)}")
    return found


def calibration_text(calibration: Calibration) -> str:
    """One line."""
    rates = ", ".join(f"{rate.commits_per_s:,.0f}/s with {rate.connections}" for rate in calibration.rates)
    return (
        f"bare insert-commits {rates} connections; one durable commit "
        f"{calibration.commit_p50_ms:.2f} ms (p50), {calibration.commit_p99_ms:.2f} ms (p99)"
    )


def facts(result: Result) -> list[tuple[str, str]]:
    """Under which circumstances it was measured."""
    machine = result.machine
    rows = [
        ("Penstock", f"{result.version} {result.commit}".strip()),
        ("when", f"{result.began_at}, {result.seconds / 60:.1f} minutes"),
        (
            "machine",
            f"{machine.cpus} CPUs ({machine.cpu_model}), {machine.memory_bytes / 2**30:.0f} GiB, {machine.kernel}, "
            f"Python {machine.python}" + (f", data on {machine.disk}" if machine.disk else ""),
        ),
        (
            "engine settings",
            _settings(result.engine_settings) or "defaults",
        ),
        ("PostgreSQL", _settings(result.postgres_settings) or "not seen"),
    ]
    if result.calibration is not None:
        rows.append(("calibration", calibration_text(result.calibration)))
    return rows


def _settings(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def print_facts(console: Console, result: Result) -> None:
    for name, value in facts(result):
        console.print(f"[bold]{name}[/]: {value}", highlight=False)


def print_scenario(console: Console, scenario: ScenarioResult) -> None:
    """One scenario with its bounds."""
    table = Table(title=f"{scenario.name}: {scenario.title}", title_justify="left", title_style="bold", box=None)
    for column in ("", "median", "runs", "to reach"):
        table.add_column(column, justify="left" if not column else "right")
    bounds = {bound.figure: bound for bound in scenario.bounds}
    for name, value in scenario.figures.items():
        bound = bounds.get(name)
        verdict = "" if bound is None else f"{bound_text(bound)}  {'[green]✓' if bound.met_by(value) else '[red]✗'}"
        style = "red" if name == "errors" and value else ""
        table.add_row(describe(name).label, show(name, value), spread(scenario, name), verdict, style=style)
    console.print(table)
    for note in notes(scenario):
        console.print(f"  {note}", highlight=False)
    for problem in scenario.problems:
        console.print(f"  [red]{problem}[/]", highlight=False)
    console.print()


def markdown(result: Result, plot: Path | None = None) -> str:
    """The whole result as a page."""
    lines = ["# Benchmark result", ""]
    lines += [f"- {name}: {value}" for name, value in facts(result)]
    lines += [f"- command: `{result.command}`", ""]
    if plot is not None:
        lines += [f"![The same as a plot]({plot.name})", ""]
    lines += _headline_table(result)
    for scenario in result.scenarios:
        lines += ["", f"## {scenario.name}: {scenario.title}", ""]
        if scenario.parameters:
            lines += [", ".join(f"{name} {value}" for name, value in scenario.parameters.items()), ""]
        lines += ["| figure | median | lowest – highest | to reach | |", "|---|---|---|---|---|"]
        bounds = {bound.figure: bound for bound in scenario.bounds}
        for name, value in scenario.figures.items():
            bound = bounds.get(name)
            verdict = "" if bound is None else ("yes" if bound.met_by(value) else "**no**")
            wanted = "" if bound is None else bound_text(bound)
            cells = (describe(name).label, show(name, value), spread(scenario, name), wanted, verdict)
            lines.append(f"| {' | '.join(cells)} |")
        lines += [f"\n{note}" for note in notes(scenario)]
        lines += [f"\n**Problem:** {problem}" for problem in scenario.problems]
    return "\n".join(lines) + "\n"


def _headline_table(result: Result) -> list[str]:
    shown = [scenario for scenario in result.scenarios if {"jobs_per_s", "instances_per_s"} & scenario.figures.keys()]
    if not shown:
        return []
    columns = [name for name in HEADLINE if any(name in scenario.figures for scenario in shown)]
    titles = [f"{describe(name).label} {describe(name).unit}".strip() for name in columns]
    lines = [f"| scenario | {' | '.join(titles)} |", "|---" * (len(columns) + 1) + "|"]
    for scenario in shown:
        cells = [
            f"{scenario.figures[name]:,.{describe(name).digits}f}" if name in scenario.figures else ""
            for name in columns
        ]
        lines.append(f"| {scenario.name} | {' | '.join(cells)} |")
    return lines
