"""`penstock archive …`: what retention left in files; needs no engine and no database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import JsonAnyway, JsonOption, print_json, print_table, shown_time
from penstock.cli.plain import echo

if TYPE_CHECKING:
    from penstock.runtime.archive import Archived

app = typer.Typer(
    name="archive", help="Read instances that retention removed, from the files of `archive_dir`.", no_args_is_help=True
)

NOT_FOUND = 1
DirectoryArgument = Annotated[
    Path, typer.Argument(help="The directory, in place of the setting `archive_dir`.", exists=True, file_okay=False)
]


@app.command(name="list")
def list_archived(
    directory: DirectoryArgument,
    definition: Annotated[str | None, typer.Option(help="Only of this definition.")] = None,
    status: Annotated[str | None, typer.Option(help="COMPLETED, FAILED or CANCELLED.")] = None,
    business_key: Annotated[str | None, typer.Option(help="Only with this business key.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List archived instances. `--json`: a line for each, with its variables, for jq and for loading elsewhere."""
    import msgspec

    wanted = {"definition": definition, "status": status and status.upper(), "business_key": business_key}
    rows: list[tuple[str, ...]] = []
    for each in _read(directory):
        found = each.instance
        if any(value is not None and found.get(name) != value for name, value in wanted.items()):
            continue
        if as_json:
            typer.echo(msgspec.json.encode(found))
        else:
            ended = shown_time(datetime.fromisoformat(found["ended_at"]))
            about = f"{found['definition']}:{found['version']}"
            rows.append((found["id"], found["status"], about, ended, found["business_key"] or "", each.file.name))
    if not as_json:
        print_table(("id", "status", "definition", "ended", "business key", "file"), rows)


@app.command()
def show(
    directory: DirectoryArgument,
    id: Annotated[str, typer.Argument(help="The instance's id.")],
    as_json: JsonAnyway = False,
) -> None:
    """Print an archived instance with its steps, of a durable run also its journal, as JSON."""
    found = None
    for each in _read(directory):
        if each.instance["id"] == id:
            found = each  # the latest counts
    if found is None:
        echo(f"penstock: instance {id} is not in {directory}", err=True)
        raise typer.Exit(NOT_FOUND)
    steps = [line["step"] for line in found.lines if "step" in line]
    records = [line["record"] for line in found.lines if "record" in line]
    print_json({"instance": found.instance, "steps": steps} | ({"journal": records} if records else {}))


def _read(directory: Path) -> Iterator[Archived]:
    from penstock.runtime.archive import read

    try:
        yield from read(directory)
    except (OSError, ValueError) as error:
        echo(f"penstock: {error}", err=True)
        raise typer.Exit(NOT_FOUND) from error
