"""`penstock bench`: in a checkout the front door of the harness in `benchmarks/`, in an installation a load generator.

The wheel and the standalone binary carry no harness. It must not be imported by anything that serves.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import penstock

__all__ = ["run_bench"]


def run_bench(words: list[str]) -> None:
    """Hand ``words`` to the harness, or else to the load generator, whose exit code ends the process."""
    checkout = Path(penstock.__file__).parents[2]
    if not (checkout / "benchmarks" / "command.py").is_file():
        from penstock.cli.load import main

        main(words, program="penstock bench")
        return
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    importlib.import_module("benchmarks.command").main(words, program="penstock bench")
