"""`penstock attention …`: what needs somebody, as the console's first page shows it."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected
from penstock.cli.options import JsonOption, print_done, print_json, print_table, shown_time

app = typer.Typer(name="attention", help="List and acknowledge what needs attention.", no_args_is_help=True)

KeyArgument = Annotated[str, typer.Argument(help="The row's key, as the list prints it.", metavar="KEY")]


@app.command(name="list")
def list_attention(
    url: UrlOption = DEFAULT_URL, token_file: TokenFileOption = None, as_json: JsonOption = False
) -> None:
    """List what needs attention: what concerns most work first, what is acknowledged last."""
    with connected(url, token_file) as client:
        found = client.list_attention()
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each.severity,
            each.text,
            each.detail,
            ""
            if each.acknowledged is None
            else f"{each.acknowledged.by or 'somebody'}, until {shown_time(each.acknowledged.until)}",
            each.key,
        )
        for each in found
    ]
    print_table(("severity", "what", "detail", "acknowledged", "key"), rows)


@app.command()
def acknowledge(
    key: KeyArgument,
    note: Annotated[str | None, typer.Option(help="A note for the people who see it next.")] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Acknowledge a row. It comes back after `attention_acknowledged_hours`, or when more instances have failed."""
    with connected(url, token_file) as client:
        count = next((each.count for each in client.list_attention() if each.key == key), None)
        if count is None:
            raise typer.BadParameter("no row of the list has it", param_hint="KEY")
        client.acknowledge(key, count=count, note=note)
    print_done({"key": key, "acknowledged": True}, None, as_json=as_json)


@app.command()
def withdraw(
    key: KeyArgument, url: UrlOption = DEFAULT_URL, token_file: TokenFileOption = None, as_json: JsonOption = False
) -> None:
    """Withdraw an acknowledgement: the row needs attention again."""
    with connected(url, token_file) as client:
        client.withdraw_acknowledgement(key)
    print_done({"key": key, "acknowledged": False}, None, as_json=as_json)
