"""How commands reach a running engine: its address, a token, and what a failed call looks like."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import read_bytes
from penstock.cli.plain import echo

if TYPE_CHECKING:
    from penstock.client.blocking import SyncClient

TOKEN_VARIABLE = "PENSTOCK_TOKEN"  # noqa: S105 - the variable's name, not a token
CALL_TIMEOUT_S = 10.0
"""People wait for it: shorter than what the client has for programs."""
JSON_MAX_BYTES = 64 * 1024 * 1024

UrlOption = Annotated[
    str,
    typer.Option(
        help="The address of the engine's REST interface.", envvar="PENSTOCK_URL", show_envvar=True, metavar="URL"
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(help=f"File with an API token. [default: the variable {TOKEN_VARIABLE}]", metavar="FILE"),
]
DEFAULT_URL = "http://127.0.0.1:8080"


@contextmanager
def connected(url: str, token_file: Path | None) -> Generator[SyncClient]:
    """A client of the engine. What a call raises is told in a line: exit code 1; wrong use: 2."""
    from penstock.client import BadRequest, ClientError, SyncClient

    try:
        with SyncClient(url, token=read_token(token_file), timeout_s=CALL_TIMEOUT_S) as client:
            yield client
    except ClientError as error:
        problems = error.problems if isinstance(error, BadRequest) else []
        for told in [f"{each.path}: {each.reason}" for each in problems] or [str(error)]:
            echo(f"penstock: {told}", err=True)
        raise typer.Exit(1) from error
    except (OSError, ValueError) as error:
        echo(f"penstock: {error}", err=True)
        raise typer.Exit(2) from error


def read_token(file: Path | None) -> str | None:
    """Return the token of a file, else that of the environment. Raises OSError."""
    if file is not None:
        return file.read_text(encoding="utf-8").strip()
    return os.environ.get(TOKEN_VARIABLE) or None


def json_object(text: str | None, file: Path | None) -> dict[str, Any] | None:
    """The JSON object of an argument or of a file (`-` is standard input). What is wrong is told: exit code 2."""
    import msgspec

    if text is not None and file is not None:
        raise typer.BadParameter("give the JSON or a file, not both")
    try:
        if file is not None:
            body = read_bytes(file, JSON_MAX_BYTES)
        elif text is not None:
            body = text.encode()
        else:
            return None
        return msgspec.json.decode(body, type=dict[str, Any])
    except (OSError, UnicodeEncodeError, msgspec.DecodeError) as error:
        raise typer.BadParameter(f"no JSON object: {getattr(error, 'strerror', None) or error}") from error
