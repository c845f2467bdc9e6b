"""`penstock config …`: what the engine would run with here, and where each value comes from."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.configuration import refuse
from penstock.cli.options import ConfigOption, JsonOption, print_json, print_table
from penstock.cli.plain import echo

app = typer.Typer(name="config", help="Show the settings as an engine would read them here.", no_args_is_help=True)


@app.command()
def show(
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that differ from their default.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print every setting, its value and where that comes from; secrets are hidden.

    It reports each variable of the environment that begins with WE_ and is no setting, with a name that is like it.
    Exit code 2 when the settings are wrong: then it prints all problems.
    """
    from penstock.settings import SETTINGS, SettingsError, did_you_mean, load_with_sources, unknown_environment

    try:
        settings, sources = load_with_sources(config_path=config)
    except SettingsError as error:
        refuse(error.problems)
    shown = settings.redacted() if changed else settings.shown()
    unknown = unknown_environment()
    if as_json:
        rows = [
            {"name": name, "value": value, "source": sources.get(name), "environment": SETTINGS[name].env}
            for name, value in shown.items()
        ]
        print_json({"settings": rows, "unknownEnvironment": unknown})
        return
    print_table(("setting", "value", "from"), [(n, _text(v), sources.get(n, "default")) for n, v in shown.items()])
    for name, nearest in unknown.items():
        echo(f"{name}: means nothing to the engine{did_you_mean(nearest)}", err=True)


def _text(value: object) -> str:
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)
