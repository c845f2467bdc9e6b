"""`penstock message …`: publish messages to whoever waits for them, and list those that wait."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected, json_object
from penstock.cli.options import (
    FileOption,
    JsonOption,
    LimitOption,
    VariablesArgument,
    print_json,
    print_page,
    shown_time,
)
from penstock.cli.plain import echo

app = typer.Typer(name="message", help="Messages of a running engine: publish, list.", no_args_is_help=True)


@app.command()
def publish(
    name: Annotated[str, typer.Argument(help="The message's name.")],
    key: Annotated[str, typer.Argument(help="Its correlation key.", metavar="KEY")],
    variables: VariablesArgument = None,
    file: FileOption = None,
    ttl: Annotated[
        str | None, typer.Option(help="How long it is kept, in ISO 8601. With PT0S it is not kept. [default: P1D]")
    ] = None,
    message_id: Annotated[
        str | None,
        typer.Option(help="Your id of the message. It is published once, however often you repeat the command."),
    ] = None,
    to_all: Annotated[
        bool, typer.Option("--to-all", help="Deliver it to all that wait now, not only to the oldest.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish a message and print who received it."""
    given = json_object(variables, file)
    with connected(url, token_file) as client:
        published = client.publish_message(name, key, given, ttl=ttl, message_id=message_id, to_all=to_all)
    if as_json:
        print_json(published)
        return
    for receiver in published.delivered:
        echo(f"{receiver.instance_id} {receiver.step_id}")
    if not published.delivered:
        echo("kept" if published.kept else "nobody waits for it", err=True)


@app.command(name="list")
def list_messages(
    name: Annotated[str | None, typer.Option(help="Only with this name.")] = None,
    key: Annotated[str | None, typer.Option(help="Only with this correlation key.")] = None,
    limit: LimitOption = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List messages that nobody has received yet, oldest first."""
    with connected(url, token_file) as client:
        page = client.list_messages(name=name, correlation_key=key, limit=limit)
    print_page(
        page,
        ("name", "key", "published", "expires", "bytes"),
        lambda each: (
            each.name,
            each.correlation_key,
            shown_time(each.published_at),
            shown_time(each.expires_at),
            str(each.size_bytes),
        ),
        as_json=as_json,
        limit=limit,
        narrower="--name, --key",
    )
