"""Options that several commands share, and what they print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from penstock.wire.page import Page

T = TypeVar("T")

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
LimitOption = Annotated[int, typer.Option(help="How many at most.", min=1, max=200)]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for programs.")]
JsonAnyway = Annotated[bool, typer.Option("--json", help="It is JSON anyway.")]
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
        typer.echo(text)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be, one row a line whatever the terminal: so that grep and cut work."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_page(
    page: Page[T], head: Sequence[str], row: Callable[[T], Sequence[str]], *, as_json: bool, limit: int, narrower: str
) -> None:
    """A list as JSON or as a table; that there is more goes to standard error, with what narrows it."""
    if as_json:
        print_json(page.items)
        return
    print_table(head, [row(each) for each in page.items])
    if page.next is not None:
        typer.echo(f"there are more than {limit}: --limit, {narrower}", err=True)


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


def shown_time(at: datetime | None) -> str:
    """UTC to the second."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
