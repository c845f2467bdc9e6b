"""`penstock audit`: what people and programs did on a running engine."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected
from penstock.cli.options import JsonOption, LimitOption, print_page, shown_time


def audit(
    kind: Annotated[
        str | None, typer.Option(help="Only records of this kind, such as QUEUE_CHANGED.", metavar="KIND")
    ] = None,
    actor: Annotated[
        str | None, typer.Option(help="Only records of this caller, such as token:ada.", metavar="NAME")
    ] = None,
    contains: Annotated[
        str | None,
        typer.Option(help="Only records with this text in the detail, in upper or lower case.", metavar="TEXT"),
    ] = None,
    since: Annotated[datetime | None, typer.Option(help="Only from this time on.", metavar="TIME")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only before this time.", metavar="TIME")] = None,
    limit: LimitOption = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what people and programs did, newest first, with old and new values: who paused, changed, uploaded, made a
    token or signed in. Times without a zone are this machine's."""
    with connected(url, token_file) as client:
        page = client.list_audit(kind=kind, actor=actor, contains=contains, since=since, until=until, limit=limit)
    print_page(
        page,
        ("when", "kind", "by", "instance", "what", "before"),
        lambda each: (
            shown_time(each.at),
            each.kind,
            each.actor or "",
            each.instance_id or "",
            each.detail or "",
            each.old or "",
        ),
        as_json=as_json,
        limit=limit,
        narrower="or a narrower filter",
    )
