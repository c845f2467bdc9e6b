"""`penstock bench`: the front door of the harness in `benchmarks/`, which ships in the wheel too.

In a checkout the harness stands at the top of the repository, in a wheel in `penstock/harness/benchmarks`: a directory
of its own, because its parent goes on the module path and nothing else may become importable by that. It must not be
imported by anything that serves; the standalone binary does not carry it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import penstock

__all__ = ["HarnessMissing", "run_bench"]


class HarnessMissing(Exception):
    """This installation carries no harness; the text says where there is one."""


def run_bench(words: list[str]) -> None:
    """Hand ``words`` to the harness, whose exit code ends the process. Raises HarnessMissing."""
    parent = _parent_of_harness()
    if str(parent) not in sys.path:
        sys.path.insert(0, str(parent))
    importlib.import_module("benchmarks.command").main(words, program="penstock bench")


def _parent_of_harness() -> Path:
    package = Path(penstock.__file__).parent
    for directory in (package / "harness", package.parents[1]):
        if (directory / "benchmarks" / "command.py").is_file():
            return directory
    raise HarnessMissing(
        "the standalone binary measures nothing; `pip install 'penstock[engine]'` brings the harness with it"
    )
