"""The command line: `python -m benchmarks [run | list | compare | pair | against | show | size]`.

Relies on typer, as `penstock` does, whose `bench` command passes its words on to `main`. Exit code 0 when everything
was measured (whatever the figures say), 1 when a scenario failed, 2 for wrong options; `run --check` and `compare`
give 1 when a bound was missed, or something got worse, `pair` while its interval is too wide.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import compare as comparison
from benchmarks import pair, report, result, size
from benchmarks.against import side_of, theirs_and_ours
from benchmarks.bench import Options, ScenarioFailed, Unsuitable
from benchmarks.deployment import DeploymentFailed, existing, variable_of
from benchmarks.figures import describe
from benchmarks.load.generator import GeneratorFailed
from benchmarks.plot import write_plot
from benchmarks.progress import Display
from benchmarks.runner import Plan, run
from benchmarks.scenarios import SCENARIOS

DEFAULT_OUTPUT = Path("bench-results")
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for programs.")]
DEFAULT_WORK_DIR = Path("/var/tmp")
"""On a disk nearly everywhere, which /tmp is not."""

app = typer.Typer(
    name="benchmarks",
    help="Measures a Penstock engine through its real transports, and says what each job cost.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(words: list[str], program: str = "python -m benchmarks") -> None:
    """Run the command line; `run` is what no command means. ``program`` is what results say they were made with.

    Ends the process.
    """
    commands = {"run", "list", "compare", "pair", "against", "show", "size"}
    if not words or (words[0] not in commands and words[0] not in ("-h", "--help")):
        in_turn = any(word.partition("=")[0] == "--against" for word in words)
        words = ["against" if in_turn else "run", *words]
    app(words, prog_name=program, obj=[*program.split(), *words])


@app.command("run")
def run_command(
    context: typer.Context,
    scenarios: Annotated[
        list[str] | None, typer.Argument(help="Names of `list`; without any, all that are not long.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="The long ones too.")] = False,
    quick: Annotated[bool, typer.Option(help="Small sizes: does it work? The figures mean little.")] = False,
    repeat: Annotated[int, typer.Option(min=1, max=99, help="Runs of each scenario; the medians count.")] = 3,
    url: Annotated[str | None, typer.Option(help="Measure this engine instead of one of our own.")] = None,
    dsn: Annotated[str | None, typer.Option(help="With --url: its database, for WAL, commits and CPU.")] = None,
    metrics_url: Annotated[str | None, typer.Option(help="With --url: its metrics, for CPU and batch sizes.")] = None,
    grpc: Annotated[str | None, typer.Option(help="With --url: HOST:PORT of its gRPC port.")] = None,
    engine_pid: Annotated[int | None, typer.Option(help="With --url: its process, if it runs here.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of our engines.")
    ] = None,
    generators: Annotated[int, typer.Option(min=1, max=64, help="Processes of the load generator.")] = 1,
    work_dir: Annotated[Path, typer.Option(help="Where our engines' data goes meanwhile; a real disk.")] = Path(
        "/var/tmp"
    ),
    output: Annotated[Path, typer.Option(help="Directory for JSON, table and plot.")] = DEFAULT_OUTPUT,
    name: Annotated[str | None, typer.Option(help="Name of the files; by default the time.")] = None,
    check: Annotated[bool, typer.Option(help="Exit with 1 when a figure misses what it has to reach.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure, print a table, and write JSON, Markdown and a plot."""
    reported = Console(stderr=True)
    chosen = list(scenarios or [key for key, scenario in SCENARIOS.items() if all_ or not scenario.long])
    unknown = [key for key in chosen if key not in SCENARIOS]
    if unknown:
        _refuse(reported, f"there is no scenario {', '.join(unknown)}; `list` names them")
    if url is None and (dsn or metrics_url or engine_pid or grpc):
        _refuse(reported, "--dsn, --metrics-url, --grpc and --engine-pid need --url")
    try:
        settings = dict(_setting(text) for text in set_ or [])
        for each in settings:
            variable_of(each)
        plan = Plan(
            scenarios=[SCENARIOS[key] for key in chosen],
            options=Options(
                quick=quick,
                generator_processes=generators,
                settings=settings,
                work_dir=work_dir,
                calibration_s=1.0 if quick else 4.0,
            ),
            repeat=1 if quick else repeat,
            existing=None if url is None else existing(url, dsn, metrics_url, engine_pid, grpc),
            command=shlex.join(context.obj),
        )
    except (DeploymentFailed, ValueError) as error:
        _refuse(reported, str(error))
    shown = Console(quiet=as_json)
    try:
        with Display(reported) as display:
            measured = run(plan, display, lambda scenario: report.print_scenario(shown, scenario))
    except (DeploymentFailed, ScenarioFailed, GeneratorFailed) as error:
        reported.print(f"the benchmarks failed: {error}", style="red", highlight=False, markup=False)
        raise typer.Exit(1) from error
    report.print_facts(shown, measured)
    _write(shown, measured, output, name)
    if as_json:
        _print_json(measured)
    missed = any(not bound.met_by(scenario.figures[bound.figure]) for scenario, bound in _bounds(measured))
    raise typer.Exit(1 if check and missed else 0)


def _bounds(measured: result.Result) -> list[tuple[result.ScenarioResult, result.Bound]]:
    return [
        (scenario, bound)
        for scenario in measured.scenarios
        for bound in scenario.bounds
        if bound.figure in scenario.figures
    ]


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set {text}: needs NAME=VALUE")
    return name, value


def _write(console: Console, measured: result.Result, output: Path, name: str | None) -> None:
    stem = name or datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{stem}.json"
    result.write(measured, path)
    plot = path.with_suffix(".svg")
    write_plot(measured, plot)
    path.with_suffix(".md").write_text(report.markdown(measured, plot), encoding="utf-8")
    console.print(f"written: {path}, {path.with_suffix('.md').name}, {plot.name}", highlight=False)


@app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """The scenarios, and what they have to reach."""
    if as_json:
        named = ("name", "title", "long", "bounds")
        _print_json([{name: getattr(each, name) for name in named} for each in SCENARIOS.values()])
        return
    table = Table(box=None)
    for column in ("scenario", "", "to reach"):
        table.add_column(column)
    for scenario in SCENARIOS.values():
        wanted = "; ".join(f"{describe(b.figure).label} {report.bound_text(b)}" for b in scenario.bounds)
        table.add_row(scenario.name, scenario.title + (" (long)" if scenario.long else ""), wanted)
    Console().print(table)


@app.command("compare")
def compare_command(old: Path, new: Path, as_json: JsonOption = False) -> None:
    """Two results (JSON) side by side; exit code 1 when something got worse."""
    console = Console()
    try:
        before, after = result.read(old), result.read(new)
    except result.UnreadableResult as error:
        _refuse(Console(stderr=True), str(error))
    if as_json:
        _print_json(comparison.compare(before, after))
        console.quiet = True
    raise typer.Exit(0 if comparison.print_comparison(console, before, after) else 1)


@app.command("size")
def size_command(
    measured: Annotated[Path, typer.Argument(help="A result (JSON) of this kind of machine.")],
    instances_per_second: Annotated[float, typer.Option(min=0.0001, help="Started, on average of a day.")],
    jobs: Annotated[float, typer.Option(min=0, help="Of each instance.")] = 3,
    variables_bytes: Annotated[int, typer.Option(min=0, help="With which an instance begins.")] = 1_000,
    output_bytes: Annotated[int, typer.Option(min=0, help="What a job writes.")] = 200,
    peak: Annotated[float, typer.Option(min=1, help="The peak against the average.")] = 3,
    kept_days: Annotated[float, typer.Option(min=0, help="`retention_days`, and the time that instances run.")] = 30,
    scenario: Annotated[
        str, typer.Option(help="How workers come: single-3 (a call per job), batch-3, stream, grpc-single.")
    ] = "single-3",
    as_json: JsonOption = False,
) -> None:
    """How many cores, processes and connections, how much WAL and disk a load needs, from what was measured."""
    load = size.Load(instances_per_second, jobs, variables_bytes, output_bytes, peak, kept_days)
    try:
        found = size.sizing(result.read(measured), scenario, load)
    except result.UnreadableResult as error:
        _refuse(Console(stderr=True), str(error))
    if as_json:
        _print_json(found)
        return
    for name, text in size.lines(found):
        typer.echo(f"{name:28}{text}")


@app.command("pair")
def pair_command(
    old: Annotated[Path, typer.Argument(help="A checkout.")],
    new: Annotated[Path, typer.Argument(help="Another one.")] = Path(),
    scenario: Annotated[str, typer.Option(help="Of `list`: one whose figures are per job.")] = "single-3",
    items: Annotated[int, typer.Option(min=50, help="Jobs (or instances) in each window.")] = 3_000,
    within: Annotated[float, typer.Option(min=0.1, max=50, help="Half of the interval to reach, in percent.")] = 3.0,
    minutes: Annotated[float, typer.Option(min=0.5, max=600, help="Stop then; the same command goes on.")] = 4.5,
    compiled: Annotated[bool, typer.Option(help="The new one with its hot path as C; minutes at first.")] = False,
    blocks_max: Annotated[int, typer.Option(min=8, max=1_000, help="With so many it is too noisy to tell.")] = 80,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of both engines.")
    ] = None,
    work_dir: Annotated[Path, typer.Option(help="Where the engines' data goes meanwhile; a real disk.")] = (
        DEFAULT_WORK_DIR
    ),
    state: Annotated[Path | None, typer.Option(help="The file that keeps what was measured.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Two checkouts in turn (ABBA), CPU and WAL per job of one against the other; exit code 1 while it is not told."""
    reported = Console(stderr=True)
    if scenario not in SCENARIOS:
        _refuse(reported, f"there is no scenario {scenario}; `list` names them")
    try:
        options = Options(settings=dict(_setting(text) for text in set_ or []), work_dir=work_dir, items=items)
        sides = pair.side(old), pair.side(new, compiled_in=DEFAULT_OUTPUT if compiled else None)
        file = state or DEFAULT_OUTPUT / f"pair-{scenario}-{sides[0].commit}-{sides[1].commit}.json"
        pairs = pair.open_pairs(file, SCENARIOS[scenario], items, *sides)
    except (pair.PairFailed, result.UnreadableResult, ValueError) as error:
        _refuse(reported, str(error))
    opened = partial(pair.both, pairs, options)
    _in_turn(pairs, file, opened, within=within / 100, minutes=minutes, blocks_max=blocks_max, as_json=as_json)


@app.command("against")
def against_command(
    scenario: Annotated[str, typer.Argument(help="Of `list`: one whose figures are per job.")] = "single-3",
    against: Annotated[str, typer.Option(help="The other engine: http://HOST:PORT.")] = "",
    against_dsn: Annotated[str | None, typer.Option(help="Its database, for CPU of PostgreSQL and WAL.")] = None,
    against_pid: Annotated[int | None, typer.Option(help="Its process, if it runs here, for its CPU.")] = None,
    against_grpc: Annotated[str | None, typer.Option(help="HOST:PORT of its gRPC port.")] = None,
    url: Annotated[str | None, typer.Option(help="Ours; without it one is started.")] = None,
    dsn: Annotated[str | None, typer.Option(help="With --url: its database.")] = None,
    engine_pid: Annotated[int | None, typer.Option(help="With --url: its process, if it runs here.")] = None,
    grpc: Annotated[str | None, typer.Option(help="With --url: HOST:PORT of its gRPC port.")] = None,
    items: Annotated[int, typer.Option(min=50, help="Jobs (or instances) in each window.")] = 3_000,
    within: Annotated[float, typer.Option(min=0.1, max=50, help="Half of the interval to reach, in percent.")] = 3.0,
    minutes: Annotated[float, typer.Option(min=0.5, max=600, help="Stop then; the same command goes on.")] = 4.5,
    blocks_max: Annotated[int, typer.Option(min=1, max=1_000, help="With so many it is too noisy to tell.")] = 80,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of our engine.")
    ] = None,
    work_dir: Annotated[Path, typer.Option(help="Where our engine's data goes meanwhile; a real disk.")] = (
        DEFAULT_WORK_DIR
    ),
    state: Annotated[Path | None, typer.Option(help="The file that keeps what was measured.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Another engine of the contract and ours in turn (ABBA), as `bench [SCENARIO] --against URL`: ours against it."""
    reported = Console(stderr=True)
    if scenario not in SCENARIOS or not against:
        _refuse(
            reported, f"there is no scenario {scenario}; `list` names them" if against else "--against URL is missing"
        )
    try:
        options = Options(settings=dict(_setting(text) for text in set_ or []), work_dir=work_dir, items=items)
        theirs = existing(against, against_dsn, None, against_pid, against_grpc)
        ours = None if url is None else existing(url, dsn, None, engine_pid, grpc)
        sides = side_of(against), side_of(url)
        file = state or DEFAULT_OUTPUT / f"against-{scenario}-{sides[0].commit}-{sides[1].commit}.json"
        pairs = pair.open_pairs(file, SCENARIOS[scenario], items, *sides)
    except (DeploymentFailed, pair.PairFailed, result.UnreadableResult, ValueError) as error:
        _refuse(reported, str(error))
    opened = partial(theirs_and_ours, theirs, ours, options)
    _in_turn(pairs, file, opened, within=within / 100, minutes=minutes, blocks_max=blocks_max, as_json=as_json)


def _in_turn(
    pairs: pair.Pairs, file: Path, opened: pair.Opened, *, within: float, minutes: float, blocks_max: int, as_json: bool
) -> NoReturn:
    reported = Console(stderr=True)
    try:
        with Display(reported) as display:
            pair.measure(
                pairs, file, SCENARIOS[pairs.scenario], opened, display,
                within=within, seconds=minutes * 60, blocks_max=blocks_max,
            )  # fmt: skip
    except KeyboardInterrupt:
        reported.print("interrupted: the blocks that were completed are kept")
    except (DeploymentFailed, ScenarioFailed, GeneratorFailed, Unsuitable, pair.PairFailed) as error:
        reported.print(f"the pair failed: {error}", style="red", highlight=False, markup=False)
        raise typer.Exit(1) from error
    if as_json:
        _print_json(pairs)
    shown = Console(quiet=as_json)
    raise typer.Exit(0 if pair.print_pairs(shown, pairs, within=within, blocks_max=blocks_max) else 1)


@app.command("show")
def show_command(file: Path, as_json: JsonOption = False) -> None:
    """A result (JSON) as tables; writes its page and plot anew beside it."""
    console = Console()
    try:
        measured = result.read(file)
    except result.UnreadableResult as error:
        _refuse(Console(stderr=True), str(error))
    if as_json:
        _print_json(measured)
        console.quiet = True
    for scenario in measured.scenarios:
        report.print_scenario(console, scenario)
    report.print_facts(console, measured)
    plot = file.with_suffix(".svg")
    write_plot(measured, plot)
    file.with_suffix(".md").write_text(report.markdown(measured, plot), encoding="utf-8")


def _print_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def _refuse(console: Console, text: str) -> NoReturn:
    console.print(f"benchmarks: {text}", highlight=False, markup=False)
    raise typer.Exit(2)
