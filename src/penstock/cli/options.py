"""Options that several commands share, and what they print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from penstock.cli.plain import echo, escaped

if TYPE_CHECKING:
    from penstock.client import Instance
    from penstock.wire.page import Page

T = TypeVar("T")
NOT_COMPLETED = 1

ConfigOption = Annotated[
    Path | None,
    typer.Option(help="YAML file with settings. [default: /etc/workflow/engine.yaml if it exists]", metavar="FILE"),
]
DataDirOption = Annotated[
    str | None,
    typer.Option(
        help="Directory of the embedded PostgreSQL. [default: ~/.local/share/penstock/postgres, for root "
        "/var/lib/penstock/postgres]",
        metavar="DIR",
    ),
]
LogLevelOption = Annotated[str | None, typer.Option(help="debug, info, warning or error. [default: info]")]
LimitOption = Annotated[int, typer.Option(help="How many to show at most.", min=1, max=200)]
VariablesArgument = Annotated[str | None, typer.Argument(help="The variables, as a JSON object.", metavar="JSON")]
FileOption = Annotated[
    Path | None, typer.Option(help="Read the variables from a file; - is standard input.", metavar="FILE")
]
PriorityOption = Annotated[
    int | None, typer.Option(help="The priority of its jobs, lower first. [default: 5]", min=0, max=9)
]
FlowKeyOption = Annotated[
    str | None,
    typer.Option(
        help="The flow key of its jobs, such as a tenant: limits per key and fairness go by it.", metavar="KEY"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
JsonAnyway = Annotated[bool, typer.Option("--json", help="No effect: the output is JSON anyway.")]
"""For commands that print nothing else: programs may give it to all of them."""


def print_json(value: object) -> None:
    """Indented, on standard output."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_done(value: object, text: str | None, *, as_json: bool) -> None:
    """What was done: as JSON on a line of its own, so that several make JSON lines; or a line for people, or none."""
    import msgspec

    if as_json:
        typer.echo(msgspec.json.encode(value))
    elif text is not None:
        echo(text)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be, one row a line whatever the terminal: so that grep and cut work."""
    lines = [[escaped(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for row in lines:
        echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_page(
    page: Page[T], head: Sequence[str], row: Callable[[T], Sequence[str]], *, as_json: bool, limit: int, narrower: str
) -> None:
    """A list as JSON or as a table; that there is more, or may be behind what there was time to look at, goes to
    standard error, with what narrows it."""
    if as_json:
        print_json(page.items)
    else:
        print_table(head, [row(each) for each in page.items])
    if page.next is not None and len(page.items) < limit:
        echo(f"the list was cut off after {len(page.items)}: there may be more", err=True)
    elif page.next is not None and not as_json:
        echo(f"there are more than {limit}: --limit, {narrower}", err=True)


def read_pairs(given: Sequence[str]) -> dict[str, str]:
    """Options of the form NAME=VALUE. What is wrong is told: exit code 2."""
    pairs = [each.partition("=") for each in given]
    if bad := next((name for name, equals, _ in pairs if not equals or not name), None):
        raise typer.BadParameter(f"{bad}: must be NAME=VALUE")
    return {name: value for name, _, value in pairs}


def read_bytes(file: Path, max_bytes: int) -> bytes:
    """A file's bytes, `-` is standard input: one more than the limit at most, so that what is over it is refused."""
    if file == Path("-"):
        return sys.stdin.buffer.read(max_bytes + 1)
    with file.open("rb") as stream:
        return stream.read(max_bytes + 1)


UTC_VARIABLE = "PENSTOCK_UTC"
UtcOption = Annotated[
    bool, typer.Option("--utc", help="Print times in UTC, not in this machine's zone.", envvar=UTC_VARIABLE)
]
_UNDO_STEP_ID = "/compensation"


class _Clock:
    """In which zone times are printed."""

    utc = False


def print_utc(utc: bool) -> None:
    """Print times in UTC from now on, or in the machine's zone."""
    _Clock.utc = utc


def shown_time(at: datetime | None, zone: tzinfo | None = None) -> str:
    """Return a time to the second with its zone: that given, else the machine's, or UTC with ``--utc``."""
    if at is None:
        return ""
    try:
        local = at.astimezone(UTC if _Clock.utc and zone is None else zone)
    except (OverflowError, ValueError, OSError):  # the machine's clock ends before it
        local = at.astimezone(UTC)
    return local.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00") + ("" if local.utcoffset() else "Z")


def shown_step(id: str, item: int | None = None) -> str:
    """Return a step's id with the index of a forEach item; the step that undoes a whole instance has a word."""
    name = _UNDO_STEP_ID.removeprefix("/") if id == _UNDO_STEP_ID else id
    return name if item is None else f"{name}[{item}]"


BLOCKED: Final = "BLOCKED"
"""For people, in place of WAITING, of a durable run that no code could go on with so far."""


def instance_line(instance: Instance) -> str:
    """How an instance stands, for people."""
    where = instance.failure_reason or (
        f"at {', '.join(map(shown_step, instance.current_step_ids))}" if not instance.ended else ""
    )
    if instance.start_at is not None:
        where = f"begins {shown_time(instance.start_at)}"
    status = instance.status
    if instance.blocked:
        status, where = BLOCKED, f"since {shown_time(instance.blocked_since)}: {instance.blocked_reason}"
    about = f"{instance.id}  {status}  {instance.definition_id}:{instance.definition_version}"
    return f"{about}  {where}".rstrip()
