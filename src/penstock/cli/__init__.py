"""The command ``penstock``.

``penstock serve`` must be ready within a second, so nothing is imported before a command is known to need it (a test
counts what `penstock version` imports).
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Runs the command line and exits with its code: 0 done, 1 failed, 2 wrong use or wrong settings."""
    from penstock.cli.app import app

    app()
