"""The mutants: small faults, each in one place of the source, that the tests have to find.

They stand in TOML files beside this one, as a text of the source and what takes its place: a line number would be wrong
tomorrow. A house test says when the source does not have that text any more.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent


class Mutant(NamedTuple):
    """``name`` says what is wrong. ``tests`` are tried first."""

    package: str
    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    def applied(self, text: str) -> str:
        """The file with the fault. Raises ValueError where its place is not there, or not the only one."""
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.package}/{self.name}: {self.file} has its text {text.count(self.old)} times, not once"
            )
        return text.replace(self.old, self.new)


def all_mutants() -> list[Mutant]:
    """By package, in the order of their files."""
    return [
        Mutant(path.stem, **row)
        for path in sorted(FOLDER.glob("*.toml"))
        for row in tomllib.loads(path.read_text())["mutant"]
    ]
