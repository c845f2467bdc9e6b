"""`penstock session …`: who is signed in at the console, and the end of it."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import ConfigOption, DataDirOption, JsonOption, print_done, print_json, shown_time
from penstock.cli.plain import echo
from penstock.cli.tokens import run, settings_of

app = typer.Typer(
    name="session",
    help="List and end sessions of people who are signed in at the console.",
    no_args_is_help=True,
)


@app.command(name="list")
def list_sessions(config: ConfigOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """List sessions by id: since when, until when, whose."""
    from penstock.runtime import sessions

    found = run(lambda: sessions.everything(settings_of(config, data_dir)))
    if as_json:
        print_json([one._asdict() for one in found])
        return
    for one in found:
        echo(f"{one.id}  {shown_time(one.created_at)}  {shown_time(one.expires_at)}  {one.name}")


@app.command()
def end(
    id: Annotated[str, typer.Argument(help="The session's id, as `penstock session list` shows it.")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a session: calls with it end within a second or two on all engines."""
    from penstock.runtime import sessions

    name = run(lambda: sessions.end(settings_of(config, data_dir), id))
    print_done({"id": id, "name": name, "ended": True}, f"ended {id} ({name})", as_json=as_json)
