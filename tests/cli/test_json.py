"""Every command that shows something shows it as JSON, too; those that don't are named, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from penstock.cli.app import app

JSON_ANYWAY = {
    "definition show",
    "definition export",
    "archive show",
    "runs journal",
    "runs save",
    "expr",
    "schedule next",
}
TEXT_BY_NATURE = {
    "serve", "engine-process", "demo", "bench",  # run on; bench has options of its own
    "draw", "definition diff", "instance watch", "runs step-table",  # a picture, a diff, news, SQL
    "version", "migrate", "requeue",  # a line for people
    "token new",  # the token and nothing else
}  # fmt: skip
ACTS = {
    *(f"instance {act}" for act in ("cancel", "retry", "priority", "skip", "move", "migrate", "signal", "complete")),
    *(f"runs {act}" for act in ("send", "cancel", "retry")),
    *(f"queue {act}" for act in ("set", "pause", "resume", "delete")),
    *(f"schedule {act}" for act in ("pause", "resume", "trigger", "backfill", "delete")),
    "job forget-checkpoint", "token revoke", "session end",
}  # fmt: skip
"""They change something: the exit code says whether it was done, a line what. Programs have REST for them."""


def commands(command: Any, way: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """All, with their options."""
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(way), {option for each in command.params for option in getattr(each, "opts", ())}
        return
    for name, each in below.items():
        yield from commands(each, (*way, name))


def test_what_shows_something_shows_it_as_json_too() -> None:
    found = dict(commands(get_command(app)))
    without = {name for name, options in found.items() if "--json" not in options}
    assert without <= JSON_ANYWAY | TEXT_BY_NATURE | ACTS
    assert found.keys() >= JSON_ANYWAY | TEXT_BY_NATURE | ACTS, "of a command that is gone"
    assert {"worker list", "job list", "token list", "session list", "doctor", "config show"} <= found.keys() - without
