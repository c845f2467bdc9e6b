"""How commands reach a running engine: its address, a token, and what a failed call looks like."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

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
NO_NAMES: Final[Mapping[str, str]] = {}
RENAMED: Final = {
    "definition": "definitionId",
    "version": "definitionVersion",
    "failed_step": "stepId",
    "current_step": "currentStepId",
    "parent": "parentInstanceId",
    "bulk": "bulkId",
}
"""Parameters of commands that are not called as REST's fields are."""
_FIELD: Final = re.compile(r"(?<![\w.])(?:\$\.|filter\.|except\.)?([a-z][a-zA-Z]*)\b(?=(:|\[\d+\]:)?)")


@contextmanager
def connected(url: str, token_file: Path | None, written: Mapping[str, str] = NO_NAMES) -> Generator[SyncClient]:
    """A client of the engine. What a call raises is printed in a line: exit code 1; wrong use: 2.

    A refusal names the command's options in place of the fields of REST; ``written`` has names that are none of them.
    """
    from penstock.client import BadRequest, ClientError, SyncClient

    try:
        with SyncClient(url, token=read_token(token_file), timeout_s=CALL_TIMEOUT_S) as client:
            yield client
    except ClientError as error:
        problems = error.problems if isinstance(error, BadRequest) else []
        for text in [f"{each.path}: {each.reason}" for each in problems] or [str(error)]:
            text = as_written(text, {**_options(), **written}) if isinstance(error, BadRequest) else text
            echo(f"penstock: {text}", err=True)
        raise typer.Exit(1) from error
    except (OSError, ValueError) as error:
        echo(f"penstock: {error}", err=True)
        raise typer.Exit(2) from error


def as_written(text: str, written: Mapping[str, str]) -> str:
    """Return a refusal that names what people wrote, by REST's names of it.

    One word may be any word of a text: it is a name where a colon follows it.
    """

    def name(found: re.Match[str]) -> str:
        is_name = found[2] or not found[1].islower()
        return written.get(found[0].removeprefix("$."), found[0]) if is_name else found[0]

    return _FIELD.sub(name, text)


def _options() -> dict[str, str]:
    """Return the options and arguments of the command that runs, by REST's names."""
    click = importlib.import_module(typer.Context.__bases__[0].__module__.rpartition(".")[0] + ".globals")  # or a copy
    context = click.get_current_context(silent=True)
    return {} if context is None else {
        RENAMED.get(each.name, as_in_rest(each.name)): each.opts[0] if each.param_type_name == "option" else each.name
        for each in context.command.params
        if each.name
    }  # fmt: skip


def as_in_rest(name: str) -> str:
    """Return the name of a field of REST that Python calls so."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def read_token(file: Path | None) -> str | None:
    """Return the token of a file, else that of the environment. Raises OSError."""
    if file is not None:
        return file.read_text(encoding="utf-8").strip()
    return os.environ.get(TOKEN_VARIABLE) or None


def json_object(text: str | None, file: Path | None) -> dict[str, Any] | None:
    """The JSON object of an argument or of a file (`-` is standard input). What is wrong is printed: exit code 2."""
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
