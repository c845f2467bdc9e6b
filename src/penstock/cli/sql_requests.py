"""`penstock requests …`: requests of SQL functions that a running engine refused, or has not carried out yet."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected
from penstock.cli.options import JsonOption, LimitOption, print_done, print_page, shown_time

app = typer.Typer(
    name="requests",
    help="Requests that programs made by SQL functions in transactions of their own.",
    no_args_is_help=True,
)

IdArgument = Annotated[str, typer.Argument(help="The number of the request.", metavar="ID")]


@app.command(name="list")
def list_requests(
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Those that no engine has carried out yet, in place of those that failed.")
    ] = False,
    limit: LimitOption = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List requests that failed, oldest first."""
    with connected(url, token_file) as client:
        page = client.list_sql_requests(waiting=waiting, limit=limit)
    print_page(
        page,
        ("id", "operation", "instance", "definition", "role", "asked", "reason"),
        lambda each: (
            each.id,
            each.operation,
            each.instance_id or "",
            each.definition_id or "",
            each.role,
            shown_time(each.asked_at),
            each.reason or "",
        ),
        as_json=as_json,
        limit=limit,
        narrower="`--limit`",
    )


@app.command()
def retry(
    id: IdArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let an engine carry out a request that failed."""
    with connected(url, token_file) as client:
        client.retry_sql_request(id)
    print_done({"id": id}, f"request {id} waits again", as_json=as_json)


@app.command()
def drop(
    id: IdArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a request that failed."""
    with connected(url, token_file) as client:
        client.drop_sql_request(id)
    print_done({"id": id}, f"request {id} is dropped", as_json=as_json)
