"""Finds the example definitions: in a wheel inside the package, in a checkout at the top of the repository."""

from __future__ import annotations

from pathlib import Path

import penstock

__all__ = ["example"]


def example(name: str) -> Path:
    """Return the path of ``examples/<name>``. Raises FileNotFoundError when this installation carries no such
    example."""
    package = Path(penstock.__file__).parent
    for directory in (package / "examples", package.parents[1] / "examples"):
        path = directory / name
        if path.is_file():
            return path
    raise FileNotFoundError(f"no example {name} beside {package}")
