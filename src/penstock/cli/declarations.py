"""`penstock declaration …`: schedules and queues that the code of durable workflows has, on a running engine."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected
from penstock.cli.options import JsonOption, LimitOption, print_done, print_page, shown_time

app = typer.Typer(
    name="declaration",
    help="Schedules and queues that the code of durable workflows has, on a running engine.",
    no_args_is_help=True,
)


@app.command(name="list")
def list_declarations(
    limit: LimitOption = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what code has, and what became of it: AS_IN_CODE, CHANGED or DELETED by somebody, or NOT_IN_CODE: no code
    has it any more."""
    with connected(url, token_file) as client:
        page = client.list_declarations(limit=limit)
    print_page(
        page,
        ("kind", "id", "state", "workflow", "seen"),
        lambda each: (each.kind, each.id, each.state, f"{each.workflow}@{each.version}", shown_time(each.seen_at)),
        as_json=as_json,
        limit=limit,
        narrower="--json",
    )


@app.command()
def apply(
    kind: Annotated[str, typer.Argument(help="schedule or queue.", metavar="KIND")],
    id: Annotated[str, typer.Argument(help="The id of the schedule, or the queue's name.", metavar="ID")],
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a schedule or a queue as the code has it. What somebody has changed is lost."""
    with connected(url, token_file) as client:
        found = client.apply_declaration(kind, id)
    print_done(found, f"{found.kind} {found.id}: {found.state}", as_json=as_json)
