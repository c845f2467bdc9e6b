"""`penstock definition …`: the definitions of a running engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.engine import DEFAULT_URL, JSON_MAX_BYTES, TokenFileOption, UrlOption, connected
from penstock.cli.instances import timers_due
from penstock.cli.options import (
    JsonAnyway,
    JsonOption,
    LimitOption,
    print_done,
    print_json,
    print_page,
    print_table,
    read_bytes,
    shown_time,
)
from penstock.cli.plain import echo

if TYPE_CHECKING:
    from penstock.client import ImpactView, SyncClient

app = typer.Typer(
    name="definition",
    help="Definitions of a running engine: upload, activate, delete, list, show, compare, impact, export, import.",
    no_args_is_help=True,
)

DIFFERENT = 1
BREAKS = 1
REFUSALS_SHOWN = 10
LIST_MAX = 200


@app.command()
def upload(
    files: Annotated[list[Path], typer.Argument(help="Definitions as JSON.", metavar="FILE")],
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Upload definitions, one after another. Stops at the first that is refused, and prints every problem.

    A content that the engine has already gives the version that exists; new starts use it. `--json`: a line for each.
    """
    with connected(url, token_file) as client:
        for file in files:
            made = client.upload_definition(file)
            unused = " (new starts use another version: see `penstock definition activate`)"
            text = f"{made.id} version {made.version}" + (unused if made.active is False else "")
            print_done(made, text, as_json=as_json)


@app.command()
def activate(
    id: Annotated[str, typer.Argument(help="The definition's id.")],
    version: Annotated[int, typer.Argument(help="The version for new starts.", min=1)],
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Activate a version for new starts, also those of schedules. Open instances stay on theirs."""
    with connected(url, token_file) as client:
        made = client.activate_version(id, version)
        print_done(made, f"new starts of {made.id} use version {made.version}", as_json=as_json)


@app.command()
def delete(
    ids: Annotated[list[str], typer.Argument(help="The ids of durable workflows.", metavar="ID")],
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete durable workflows that no program serves. Stops at the first that can't be deleted.

    Runs that have ended stay. A program that registers its workflow again brings it back. `--json`: a line for each.
    """
    with connected(url, token_file) as client:
        for id in ids:
            client.delete_definition(id)
            print_done({"id": id, "deleted": True}, None, as_json=as_json)


@app.command(name="list")
def list_definitions(
    keyword: Annotated[str | None, typer.Option(help="Only definitions with this text in their id or name.")] = None,
    limit: LimitOption = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the version of each definition that new starts use, in order of id."""
    with connected(url, token_file) as client:
        page = client.list_definitions(keyword=keyword, limit=limit)
    print_page(
        page,
        ("id", "version", "uploaded", "name"),
        lambda each: (each.id, str(each.version), shown_time(each.uploaded_at), each.name),
        as_json=as_json,
        limit=limit,
        narrower="--keyword",
    )


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="The definition's id.")],
    version: Annotated[int | None, typer.Option(help="[default: the active one]", min=1)] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonAnyway = False,
) -> None:
    """Print a definition as JSON, as it was uploaded; `penstock draw -` draws it."""
    with connected(url, token_file) as client:
        print_json(client.get_definition(id, version))


@app.command()
def diff(
    id: Annotated[str, typer.Argument(help="The definition's id.")],
    file: Annotated[Path | None, typer.Argument(help="The definition to compare with, as JSON.")] = None,
    old: Annotated[
        int | None, typer.Option("--from", help="The version to compare. [default: the active one]", min=1)
    ] = None,
    new: Annotated[
        int | None, typer.Option("--to", help="The version to compare with, in place of a file.", min=1)
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two versions of a definition, or one with a file, line by line.

    Exit code 0 when they say the same, 1 when they differ. White space and the order of fields are no difference.
    """
    import difflib

    from penstock.core.parsing.parsing import parse_definition

    if (file is None) == (new is None):
        raise typer.BadParameter("give a file or --to, one of them")
    with connected(url, token_file) as client:
        before = client.get_definition(id, old)
        if file is not None:
            after: Any = parse_definition(read_bytes(file, JSON_MAX_BYTES)).content.encode()
            name = str(file)
        else:
            after, name = client.get_definition(id, new), f"version {new}"
    text = list(difflib.unified_diff(_lines(before), _lines(after), f"version {before['version']}", name, lineterm=""))
    if as_json:
        print_json({"same": not text, "lines": text})
    else:
        for line in text:
            echo(line)
    if text:
        raise typer.Exit(DIFFERENT)


@app.command()
def impact(
    file: Annotated[Path | None, typer.Argument(help="A definition as JSON, as you would upload it.")] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="The id of an uploaded definition, in place of a file.")
    ] = None,
    version: Annotated[int | None, typer.Option(help="The version of --id. [default: the latest]", min=1)] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the open instances that a version of a definition would not fit, with reasons.

    They stay on their version, whatever is uploaded; `penstock bulk migrate` takes them to another one. Exit code 1
    when some could not go on in it.
    """
    from penstock.core.parsing.parsing import parse_definition

    if (file is None) == (id is None) or (file is not None and version is not None):
        raise typer.BadParameter("give a file, or --id with or without --version")
    with connected(url, token_file) as client:
        if file is not None:
            body = read_bytes(file, JSON_MAX_BYTES)
            found = client.get_impact(parse_definition(body).id, body)
        else:
            found = client.get_impact(id or "", version=version)
    if as_json:
        print_json(found)
    else:
        _print_impact(found)
    if _breaks(found):
        raise typer.Exit(BREAKS)


def _breaks(found: ImpactView) -> bool:
    refused = found.refusals is not None and found.refusals.refused > 0
    return refused or any(step.reasons for version in found.versions for step in version.steps)


def _print_impact(found: ImpactView) -> None:
    changes = found.steps
    if changes is not None:
        for name, steps in (("adds", changes.added), ("changes", changes.changed), ("removes", changes.removed)):
            if steps:
                echo(f"{name} {', '.join(steps)}")
    rows = [
        (str(version.version), step.step_id, str(step.open), step.change.lower(), "; ".join(step.reasons))
        for version in found.versions
        for step in version.steps
    ]
    print_table(("version", "step", "open" if found.exact else "open, about", "there", "can't go on because"), rows)
    refusals = found.refusals
    if refusals is not None and refusals.timers_due:
        echo(f"migrating the newest {refusals.checked} instances: {timers_due(refusals.timers_due)}")
    if refusals is None or not refusals.refused:
        return
    echo(f"of the newest {refusals.checked} instances {refusals.refused} can't go on in it:")
    for check in refusals.instances[:REFUSALS_SHOWN]:
        echo(f"  {check.instance_id}  version {check.from_version}  {'; '.join(check.reasons)}")


def _lines(document: Any) -> list[str]:
    """Return the canonical form, a line for each field: what an upload would compare."""
    import msgspec

    from penstock.core.parsing.parsing import STORED_LIMITS, parse_definition

    body = document if isinstance(document, bytes) else msgspec.json.encode(document)
    content = parse_definition(body, limits=STORED_LIMITS).content
    return msgspec.json.format(content.encode(), indent=2).decode().splitlines()


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="The directory for the files. It is created if it does not exist.")],
    all_versions: Annotated[
        bool, typer.Option("--all-versions", help="Every version, not only the latest of each definition.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write all definitions into files ID@VERSION.json, for `penstock definition import` at another engine.

    Durable workflows are left out: their programs upload them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    made: list[dict[str, Any]] = []
    with connected(url, token_file) as client:
        for id, latest in _all(client):
            for version in range(1 if all_versions else latest, latest + 1):
                document = client.get_definition(id, version)
                if "code" in (document.get("metadata") or {}):
                    continue
                path = directory / f"{id.replace(':', '%3A')}@{version}.json"
                path.write_bytes(_bytes(document))
                made.append({"id": id, "version": version, "file": str(path)})
    print_json(made) if as_json else echo(f"{len(made)} definitions exported to {directory}")


def _all(client: SyncClient) -> Iterator[tuple[str, int]]:
    cursor = None
    while True:
        page = client.list_definitions(limit=LIST_MAX, cursor=cursor)
        yield from ((each.id, each.version) for each in page.items)
        cursor = page.next
        if cursor is None:
            return


def _bytes(document: dict[str, Any]) -> bytes:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


@app.command(name="import")
def import_(
    directory: Annotated[
        Path, typer.Argument(help="A directory with files that `export` wrote.", exists=True, file_okay=False)
    ],
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Upload the definitions of a directory, those of one id in the order of their versions.

    The first that is refused ends it; what the engine has already is left as it is, so it can be repeated. Versions are
    numbered anew where not all of them are there.
    """
    found = sorted((each.stem.rpartition("@")[::2], each) for each in directory.glob("*@*.json"))
    if bad := next((path for (_, version), path in found if not version.isdecimal()), None):
        raise typer.BadParameter(f"{bad.name}: is not ID@VERSION.json")
    with connected(url, token_file) as client:
        made = [
            client.upload_definition(path) for _, path in sorted(found, key=lambda each: (each[0][0], int(each[0][1])))
        ]
    if as_json:
        print_json(made)
    else:
        echo(f"{len(made)} definitions are there")
