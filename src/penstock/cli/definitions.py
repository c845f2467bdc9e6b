"""`penstock definition …`: the definitions of a running engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected
from penstock.cli.options import JsonOption, LimitOption, print_json, print_page, shown_time

app = typer.Typer(name="definition", help="Definitions of a running engine: upload, list, show.", no_args_is_help=True)


@app.command()
def upload(
    files: Annotated[list[Path], typer.Argument(help="Definitions as JSON.", metavar="FILE")],
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Upload definitions, one after another; the first that is refused ends it, with every problem told.

    A content that the engine has already gives the version that exists.
    """
    with connected(url, token_file) as client:
        for file in files:
            made = client.upload_definition(file)
            if as_json:
                print_json(made)
            else:
                typer.echo(f"{made.id} version {made.version}")


@app.command(name="list")
def list_definitions(
    keyword: Annotated[str | None, typer.Option(help="Part of the id or name.")] = None,
    limit: LimitOption = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the latest version of each definition, in order of id."""
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
    version: Annotated[int | None, typer.Option(help="[default: the latest]", min=1)] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Print a definition as JSON, as it was uploaded; `penstock draw -` draws it."""
    with connected(url, token_file) as client:
        print_json(client.get_definition(id, version))
