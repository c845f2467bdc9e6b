"""The settings of a command: read, or refused with all that is wrong about them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from penstock.cli.plain import echo

if TYPE_CHECKING:
    from penstock.settings import Settings


def read_settings(config: Path | None, **options: object) -> Settings:
    """Return the settings, with the log set up by them. Wrong ones end the command with exit code 2, all problems
    told."""
    from penstock.log.log import configure_logging, get_logger
    from penstock.settings import SettingsError, did_you_mean, load_settings, unknown_environment

    try:
        settings = load_settings(config_path=config, options=options)
    except SettingsError as error:
        refuse(error.problems)
    configure_logging(settings.log_level, settings.log_format)
    unknown = [f"{name}{did_you_mean(nearest)}" for name, nearest in unknown_environment().items()]
    if unknown:
        get_logger(__name__).warning("the engine does not know these environment variables", names=unknown)
    return settings


def refuse(problems: list[str]) -> NoReturn:
    """End the command with exit code 2."""
    echo("penstock: the settings are wrong:", err=True)
    for problem in problems:
        echo(f"  {problem}", err=True)
    raise typer.Exit(2)
