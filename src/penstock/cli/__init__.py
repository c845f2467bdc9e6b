"""The command ``penstock``.

``penstock serve`` must be ready within a second, so nothing is imported before a command is known to need it (a test
counts what `penstock version` imports). The command is there with the client and worker alone, too
(`pip install penstock`), and then says what to install.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

ENGINE = "pip install 'penstock[engine]'"
EXTRAS = {"aiokafka": "pip install 'penstock[engine,kafka]'", "hypothesis": "pip install 'penstock[testing]'"}
"""What to install for a module that is missing, where it is not the engine."""


def main() -> None:
    """Runs the command line and exits with its code: 0 done, 1 failed, 2 wrong use, wrong settings or not installed."""
    if sys.argv[1:] in (["version"], ["--version"]):
        from penstock.build import shown_version

        print(f"penstock {shown_version()}")
        return
    try:
        from penstock.cli.app import app

        app()
    except ImportError as error:
        told = _what_to_install(error)
        if told is None:
            raise
        print(f"penstock: {told}", file=sys.stderr)
        sys.exit(2)


def _what_to_install(error: ImportError) -> str | None:
    """The line for who lacks something; None for a mistake of our own."""
    module = (error.name or "penstock").partition(".")[0]
    if module == "penstock":
        return None
    if isinstance(error, ModuleNotFoundError):
        return (
            f"{module} is not installed; this needs more than the client and the worker: {EXTRAS.get(module, ENGINE)}"
        )
    return str(error) if module == "psycopg" else None  # of a version that penstock.store does not run on
