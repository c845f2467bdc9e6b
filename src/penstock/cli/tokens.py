"""`penstock token …`: options in, one call, a few lines out. The token itself goes to standard output, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock.cli.options import ConfigOption, DataDirOption, JsonOption, print_done, print_json, shown_time
from penstock.cli.plain import echo

if TYPE_CHECKING:
    from penstock.settings import Settings
    from penstock.store.rows.api_tokens import ListedToken

T = TypeVar("T")

app = typer.Typer(
    name="token",
    help="Make, list and revoke API tokens of this database, for engines with `authentication`.",
    no_args_is_help=True,
)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The name of its user. The audit trail shows it.")],
    role: Annotated[
        list[str],
        typer.Option(
            help="viewer, clerk, worker, executor, operator, admin, executor+operator, or executor(shop), of one App; "
            "may be given several times."
        ),
    ],
    job_type: Annotated[
        list[str] | None, typer.Option(help="Limit the role worker to this job type; may be given several times.")
    ] = None,
    expires_days: Annotated[
        float | None, typer.Option(help="After how many days it expires. [default: never]", min=0.001)
    ] = None,
    offline: Annotated[
        bool, typer.Option(help="Use no database: print the token, and the line for the setting api_tokens.")
    ] = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it. It is printed only once, and stored nowhere."""
    from penstock.access.roles import Role, grant_of, read_grant
    from penstock.access.tokens import make_token
    from penstock.errors import PenstockError

    try:
        given = [read_grant(each) for each in role]
        apps = [app for each in given for app in each.apps or ()]
        types = [*(job_type or ()), *(name for each in given for name in each.job_types or ())]
        grant = grant_of([found for each in given for found in each.roles], types or None, apps or None)
    except PenstockError as error:
        raise typer.BadParameter(error.reason) from error
    if offline:
        if expires_days is not None or "=" in name:
            raise typer.BadParameter("a token of the settings has no --expires-days, and no = in its name")
        made = make_token()
        setting = f"{name}={grant}=sha256:{made.digest.hex()}"
        about = {"apiTokens": setting}
        if not as_json:
            echo(f"api_tokens: {setting}", err=True)
    else:
        from penstock.runtime import api_tokens

        expires_s = None if expires_days is None else expires_days * 86_400
        made = run(lambda: api_tokens.new(settings_of(config, data_dir), name, grant, expires_s))
        about = {"id": made.id}
        if not as_json:
            echo(f"token {made.id} for {name}, roles {grant}. It is shown this once:", err=True)
    if Role.ADMIN in grant.roles:
        echo("an admin may do everything: keep it as you keep the database's password", err=True)
    print_done({"token": made.text, "name": name, "roles": str(grant), **about}, made.text, as_json=as_json)


@app.command(name="list")
def list_tokens(
    with_ended: Annotated[
        bool, typer.Option("--all", help="Show tokens that were revoked or have expired, too.")
    ] = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List tokens by id; those of the setting api_tokens are not among them."""
    from penstock.runtime import api_tokens

    tokens = run(lambda: api_tokens.everything(settings_of(config, data_dir)))
    now = datetime.now(UTC)
    if as_json:
        shown = [token._asdict() | {"state": _state(token, now)} for token in tokens]
        print_json([each for each in shown if with_ended or each["state"] != "over"])
        return
    for token in tokens:
        state = _state(token, now)
        if with_ended or state != "over":
            times = f"{shown_time(token.created_at)}  {shown_time(token.expires_at) or '-':25}"
            echo(f"{token.id}  {state:8}  {times}  {token.name}  {token.roles}")


@app.command()
def revoke(
    id: Annotated[
        str, typer.Argument(help="The token's id, as `penstock token list` shows it, or the part after pst_.")
    ],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a token. Calls with it end within a second or two on all engines."""
    from penstock.runtime import api_tokens

    name = run(lambda: api_tokens.revoke(settings_of(config, data_dir), id))
    print_done({"id": id, "name": name, "revoked": True}, f"revoked {id} ({name})", as_json=as_json)


def _state(token: ListedToken, now: datetime) -> str:
    if token.revoked_at is not None or (token.expires_at is not None and token.expires_at <= now):
        return "over"
    return "counts"


def settings_of(config: Path | None, data_dir: str | None) -> Settings:
    from penstock.cli.configuration import read_settings

    return read_settings(config, data_dir=data_dir, log_level="warning")


def run(act: Callable[[], T]) -> T:
    """What goes wrong is told in a line: exit code 1."""
    from penstock.errors import PenstockError
    from penstock.store.db.database import DatabaseError, first_line

    try:
        return act()
    except (PenstockError, DatabaseError) as error:
        echo(f"penstock: {first_line(error)}", err=True)
        raise typer.Exit(1) from error
