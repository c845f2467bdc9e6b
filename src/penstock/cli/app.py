"""The commands and their options; what a command does is imported when it runs.

Relies on typer. Must stay thin: options in, one call, exit code out.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from penstock.cli import (
    archive,
    batches,
    bulk,
    declarations,
    definitions,
    instances,
    jobs,
    messages,
    queues,
    runs,
    schedules,
    sessions,
    sql_requests,
    tokens,
    workers,
)
from penstock.cli import attention as attention_commands
from penstock.cli.audit import audit
from penstock.cli.config import app as config_commands
from penstock.cli.configuration import read_settings, refuse
from penstock.cli.engine import TokenFileOption
from penstock.cli.options import (
    ConfigOption,
    DataDirOption,
    JsonAnyway,
    JsonOption,
    LogLevelOption,
    UtcOption,
    print_done,
    print_json,
    print_table,
    print_utc,
)
from penstock.cli.plain import echo, escaped


class Plain(TyperGroup):
    """The command line: what it says of wrong use is escaped as everything is that it prints for people."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Raises errors with their messages escaped; so does `invoke`."""
        with _plain_messages():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _plain_messages():
            return super().invoke(ctx)


@contextmanager
def _plain_messages() -> Generator[None]:
    try:
        yield
    except Exception as error:  # click's, which some versions of typer have as a part of their own
        if hasattr(error, "format_message") and isinstance(message := getattr(error, "message", None), str):
            cast(Any, error).message = escaped(message)
        raise


app = typer.Typer(
    cls=Plain,
    name="penstock",
    help="A durable workflow engine on PostgreSQL.\n\n"
    "`penstock demo` shows it, `penstock serve` runs it: on the PostgreSQL named by WE_POSTGRES_DSN, or on an embedded "
    "one when there is none. All settings: docs/configuration.md.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they print local variables, secrets included
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

for group in (
    definitions,
    instances,
    batches,
    bulk,
    runs,
    messages,
    jobs,
    queues,
    schedules,
    declarations,
    sql_requests,
    tokens,
    sessions,
    archive,
    workers,
    attention_commands,
):
    app.add_typer(group.app)
app.add_typer(config_commands)
app.command()(audit)


@app.callback()
def every_command(utc: UtcOption = False) -> None:
    """A durable workflow engine on PostgreSQL."""
    print_utc(utc)


@app.command()
def serve(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    rest_port: Annotated[int | None, typer.Option(help="The port of REST. [default: 8080]")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="The port of gRPC. [default: 9090]")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="The port of the metrics. [default: 9091]")] = None,
    bind: Annotated[
        str | None,
        typer.Option(
            help="Address of all listeners; one that others reach needs authentication. [default: 127.0.0.1]",
            metavar="ADDRESS",
        ),
    ] = None,
    log_level: LogLevelOption = None,
    processes: Annotated[int | None, typer.Option(help="Engine processes that share the ports. [default: 1]")] = None,
) -> None:
    """Run the engine until SIGTERM or Ctrl-C; requests in flight are answered first.

    Options win over the environment (WE_REST_PORT, ...), which wins over the file. Exit code: 0 after a stop that was
    asked for, 1 after a failure, 2 for wrong settings.
    """
    options = {
        "data_dir": data_dir,
        "rest_port": rest_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
        "bind": bind,
        "log_level": log_level,
        "processes": processes,
    }
    settings = read_settings(config, **options)
    from penstock.runtime.service import run, wrong_settings
    from penstock.settings import load_settings

    if problems := wrong_settings(settings):
        refuse(problems)
    raise typer.Exit(run(settings, lambda: load_settings(config_path=config, options=options)))


@app.command("engine-process", hidden=True)
def engine_process() -> None:
    """One process of `serve --processes N`; started by its parent only."""
    from penstock.runtime.service import run_child

    raise typer.Exit(run_child())


@app.command()
def migrate(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    log_level: LogLevelOption = None,
    may_complete: Annotated[
        list[str] | None,
        typer.Option(
            help="A role of the database that may complete jobs in its own transactions, and do nothing else with "
            "Penstock's tables; may be given several times.",
            metavar="ROLE",
        ),
    ] = None,
    may_start: Annotated[
        list[str] | None,
        typer.Option(
            help="A role of the database that may start, send, signal, publish and cancel in its own transactions, and "
            "do nothing else with Penstock's tables; may be given several times.",
            metavar="ROLE",
        ),
    ] = None,
    definition: Annotated[
        list[str] | None,
        typer.Option(
            help="With `--may-start`: only for instances of this definition; may be given several times. Replaces what "
            "the role might before.",
            metavar="ID",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the database to this version's schema and exit; harmless when it is there already.

    `penstock serve` does the same at its start. This is for those who give the engine no right to change tables.
    """
    settings = read_settings(config, data_dir=data_dir, log_level=log_level)
    if definition and not may_start:
        raise typer.BadParameter("needs --may-start ROLE, whose limit it is", param_hint="--definition")
    from penstock.runtime.migrate import Roles, run

    applied = run(settings, Roles(may_complete or (), may_start or (), definition or ()))
    if applied is None:
        raise typer.Exit(1)
    print_done(applied._asdict(), None, as_json=as_json)


@app.command()
def doctor(config: ConfigOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """Check settings, database, engines and broker, and say what to do about each problem. Changes nothing.

    Engines may run meanwhile. Exit code 1 when there is a problem (no database is one, and none is made), 0 when there
    is advice at most.
    """
    settings = read_settings(config, data_dir=data_dir, log_level="error")
    from penstock.runtime.doctor import CheckLevel, examine

    findings = examine(settings)
    if as_json:
        print_json(findings)
    else:
        rows = [(each.verdict, each.subject, each.found, each.todo) for each in findings]
        print_table(("", "about", "found", "to do"), rows)
    raise typer.Exit(any(each.verdict is CheckLevel.PROBLEM for each in findings))


@app.command()
def requeue(
    job_type: Annotated[
        list[str] | None, typer.Option(help="Only this job type. You may give it several times. [default: all]")
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put jobs that were sent to Kafka and are still open back into the queue, at once.

    Use it after a switch to polling, or when a broker lost its records.

    Without it they come back at their deadlines. A worker that still has one of them gets `lease-lost`, unless its
    result came first. Engines may run meanwhile. The command prints how many came back.
    """
    from penstock.errors import PenstockError
    from penstock.runtime.requeue import requeue as bring_back
    from penstock.store.db.database import DatabaseError, first_line

    settings = read_settings(config, data_dir=data_dir, log_level="warning")
    try:
        returned, mode = bring_back(settings, job_type or [])
    except (PenstockError, DatabaseError) as error:
        echo(f"penstock: {first_line(error)}", err=True)
        raise typer.Exit(1) from error
    where = "published again" if mode == "kafka_outbox" else "in the queue"
    text = f"{returned} jobs came back; they are {where} (dispatch mode {mode})"
    print_done({"returned": returned, "dispatchMode": mode}, text, as_json=as_json)


@app.command()
def demo(
    instances: Annotated[int, typer.Option(help="How many orders to run.", min=1, max=100_000)] = 200,
    data_dir: Annotated[
        str | None,
        typer.Option(help="Directory of the embedded PostgreSQL, kept. [default: a temporary one]", metavar="DIR"),
    ] = None,
    open_: Annotated[
        bool,
        typer.Option("--open", help="Keep the engine until Ctrl-C, so that you can open the console in a browser."),
    ] = False,
) -> None:
    """Show a whole run: an engine on its embedded PostgreSQL, a workflow, a worker, the history of one instance.

    It uses free ports and a temporary directory, which it removes. It ignores settings of the environment.
    """
    from penstock.cli.demo import run_demo

    raise typer.Exit(run_demo(instances=instances, data_dir=data_dir, keep_open=open_))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    options_metavar="[run | list | compare | pair | show | size] [OPTIONS]",
)
def bench(context: typer.Context) -> None:
    """Measure an engine through its real transports: one of its own, or with --url the one that runs there.

    `penstock bench run --help` lists the options, `penstock bench list` the scenarios and what each has to reach.
    Writes JSON, a page and a plot; `penstock bench compare OLD NEW` sets two results side by side,
    `penstock bench SCENARIO --against URL` drives another engine of the contract in turn with ours, and
    `penstock bench size RESULT --instances-per-second N` says what a load needs.

    All of that in a checkout of the repository. An installation has a load generator in its place, for an engine that
    runs: `penstock bench --help` lists its options.
    """
    from penstock.cli.bench import run_bench

    run_bench(context.args)


@app.command()
def lint(
    paths: Annotated[list[Path], typer.Argument(help="Files, or directories of them.", metavar="PATH")],
    as_json: JsonOption = False,
) -> None:
    """Find what would make a run of a durable workflow come out differently at replay: clocks, random numbers, I/O …

    One line for each: file, line, rule, and what to write instead. `# penstock: ignore[rule]` leaves a line alone. Exit
    code 1 when there are any, 2 when a file can't be read.
    """
    from penstock.cli.lint import run_lint

    raise typer.Exit(run_lint(paths, as_json=as_json))


@app.command()
def check(
    target: Annotated[
        str,
        typer.Argument(
            help="The code: a module such as `shop.workflows`, or an App or a workflow in it, `shop.main:app`.",
            metavar="MODULE",
        ),
    ],
    at: Annotated[str | None, typer.Option(help="The database, as for an App.", metavar="DSN")] = None,
    name: Annotated[str | None, typer.Option(help="The App's name, if MODULE has no App.")] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            help="How many processes replay. [default: one for each processor if there are many runs]", min=1, max=64
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay all open runs of durable workflows against code, before it is deployed: which could not go on, and why.

    Nothing is changed and no step is called. For what breaks it says the line, what the journal has and what the code
    asks for, and what to write around the change. Exit code 1 when something breaks, 2 when code or database can't be
    had.
    """
    from penstock.cli.check import run_check

    raise typer.Exit(run_check(target, name, at, processes, as_json=as_json))


@app.command()
def debug(
    run: Annotated[
        str,
        typer.Argument(
            help="The id that the run was started with, its instance's, or a file of `penstock runs save` (`….json`).",
            metavar="RUN",
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(help="Its code, as of `penstock check`: `shop.workflows`, `shop.main:app`.", metavar="MODULE"),
    ],
    until: Annotated[
        str | None,
        typer.Option(help="Stop at this operation: a path of the journal, such as /3.", metavar="PATH"),
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="The database, or the engine (grpc://host:port), as of an App.", metavar="DSN")
    ] = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a run from its journal under a debugger, to the line where it waits, failed or was blocked.

    Under pdb, or in the debugger of the editor that has started this command. The code gets the recorded results. No
    step runs and nothing is written. `--json` prints the place and starts no debugger. Exit code 1 when there is no
    such run or operation, 2 when a file or the code can't be read.
    """
    from penstock.cli.debug import run_debug

    raise typer.Exit(run_debug(run, target, until, at, token_file, as_json=as_json))


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="Definitions as JSON; - is standard input.", metavar="FILE")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check definitions as an upload would, with every problem and its place; no engine is needed.

    A hint is about something that may be meant otherwise. A definition with hints is valid. Exit code 1 when one is not
    valid, 2 when one can't be read. `--json`: `{"valid", "problems": [{"file", "path", "reason"}]}`, and if there are
    hints, `"hints": [{"file", "path", "text", "kind"}]`.
    """
    settings = read_settings(config)
    from penstock.cli.offline import run_validate
    from penstock.core.graph.definition import DefinitionLimits

    limits = DefinitionLimits(steps_max_count=settings.definition_max_steps)
    raise typer.Exit(run_validate(files, limits, as_json=as_json))


@app.command()
def draw(
    file: Annotated[Path, typer.Argument(help="A definition as JSON; - is standard input.", metavar="FILE")],
    form: Annotated[
        str, typer.Option("--format", help="mermaid: text that code hosts draw; svg: a picture.", metavar="FORMAT")
    ] = "mermaid",
    as_json: JsonOption = False,
) -> None:
    """Print a definition's picture, as Mermaid text or as SVG.

    Exit code 1 when it is not valid, 2 when it can't be read.
    """
    from penstock.cli.offline import PictureFormat, run_draw

    if form not in list(PictureFormat):
        raise typer.BadParameter(f"must be one of {', '.join(PictureFormat)}", param_hint="--format")
    raise typer.Exit(run_draw(file, PictureFormat(form), as_json=as_json))


@app.command()
def expr(
    expression: Annotated[
        str, typer.Argument(help="An expression as in a condition, with or without ${ }.", metavar="EXPRESSION")
    ],
    variables: Annotated[str, typer.Argument(help="The variables, as a JSON object.", metavar="JSON")] = "{}",
    file: Annotated[
        Path | None, typer.Option(help="Read the variables from a file; - is standard input.", metavar="FILE")
    ] = None,
    as_json: JsonAnyway = False,
) -> None:
    """Try an expression against variables and print the result as JSON.

    Exit code 1 when it can't be parsed or fails, with the place; 2 when the variables are no JSON object.
    """
    from penstock.cli.offline import run_expression

    raise typer.Exit(run_expression(expression, variables, file))


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Print the version and exit."""
    from penstock import __version__
    from penstock.build import is_compiled, shown_version

    text = {"version": __version__, "compiled": is_compiled()}
    print_done(text, f"penstock {shown_version()}", as_json=as_json)
