"""The files of the repository as the house tests look at them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

TOP = Path(__file__).parents[2]
SRC = TOP / "src"
PACKAGE = SRC / "penstock"


@cache
def modules() -> list[Path]:
    """Every module of the package that people write."""
    return sorted(path for path in PACKAGE.rglob("*.py"))


@cache
def all_python() -> list[Path]:
    folders = ("src", "tests", "benchmarks", "chaos", "examples", "tools")
    found = [path for folder in folders for path in (TOP / folder).rglob("*.py")]
    return sorted([*found, *TOP.glob("*.py")])


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def name(path: Path) -> str:
    return str(path.relative_to(TOP))
