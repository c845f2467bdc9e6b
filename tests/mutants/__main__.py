"""Puts each mutant into a copy of the repository, and says which of them the tests find.

    .venv/bin/python -m tests.mutants [--tier quick|all] [--only-first] [name or package …]

Of each mutant the tests that it names are tried first; where none of them fails, the whole tier. So that a failure
tells of the mutant, the test that failed has to pass on the sound source. Exits with 1 where a mutant survives the
tier `all`, or more than QUICK_MAY_MISS survive the quick one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.mutants import Mutant, all_mutants

TOP = Path(__file__).parents[2]
QUICK_MAY_MISS = 15
LEFT_BEHIND = shutil.ignore_patterns(
    ".git", ".venv", "node_modules", "__pycache__", ".*_cache", ".hypothesis", "build", "dist"
)
PASSED, FAILED, BROKEN_OFF, NO_TESTS = 0, 1, 2, 5  # exit statuses of pytest; one that can't import a test breaks it off
FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Failed(Exception):
    """The tests could not be run."""


class Trial:
    """A copy of the repository."""

    def __init__(self, copy: Path, tier: str) -> None:
        self._copy = copy
        self._tier = tier
        self._sound: set[str] = set()
        """Tests that pass where nothing is wrong."""

    def killer(self, tests: Sequence[str], *, whole: bool = False) -> str | None:
        """The first test that fails; None where all pass. Raises Failed."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--tier={self._tier}", *tests]
        if whole:
            command += ["-n", str(min(4, (os.cpu_count() or 1) + 1)), "--dist=worksteal"]
        environment = {**os.environ, "PYTHONPATH": str(self._copy / "src")}
        done = subprocess.run(command, cwd=self._copy, env=environment, capture_output=True, text=True, check=False)
        if done.returncode in (PASSED, NO_TESTS):
            return None
        if done.returncode not in (FAILED, BROKEN_OFF):
            raise Failed(f"pytest ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        found = FAILURE.search(done.stdout)
        return found[1] if found else "a test that hung"

    def put(self, file: str, text: str) -> None:
        """Its compiled form goes: Python compares sizes and seconds only."""
        path = self._copy / file
        path.write_text(text)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()

    def of(self, mutant: Mutant, *, only_first: bool) -> str | None:
        """Which test finds the mutant. Raises Failed."""
        sound = (self._copy / mutant.file).read_text()
        self.put(mutant.file, mutant.applied(sound))
        try:
            killer = self.killer(mutant.tests)
            if killer is None and not only_first:
                killer = self.killer([], whole=True)
        finally:
            self.put(mutant.file, sound)
        if killer is not None:
            self._check(killer)
        return killer

    def _check(self, killer: str) -> None:
        test = killer.split("[", maxsplit=1)[0]
        if "::" in test and test not in self._sound:
            if self.killer([test]) is not None:
                raise Failed(f"{test} fails on the sound source, too")
            self._sound.add(test)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--tier", choices=("quick", "all"), default="all")
    parser.add_argument("--only-first", action="store_true", help="only the tests that each mutant names")
    parser.add_argument("wanted", nargs="*", help="names or packages; all without one")
    given = parser.parse_args(words)
    known = all_mutants()
    if unknown := {*given.wanted} - {one.name for one in known} - {one.package for one in known}:
        parser.error(f"no mutant or package is called {', '.join(sorted(unknown))}")
    chosen = [one for one in known if not given.wanted or {one.name, one.package} & {*given.wanted}]
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copy = Path(directory) / "penstock"
        shutil.copytree(TOP, copy, ignore=LEFT_BEHIND)
        trial = Trial(copy, given.tier)
        survived = 0
        for one in chosen:
            started = time.monotonic()
            try:
                killer = trial.of(one, only_first=given.only_first)
                reported = f"killed by {killer}" if killer else "SURVIVED"
            except Failed as failed:
                killer, reported = None, f"NOT TRIED: {failed}"
            survived += killer is None
            print(f"{one.package}/{one.name}: {reported} ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} mutants were killed by the tier {given.tier}")
    return int(survived > (QUICK_MAY_MISS if given.tier == "quick" and not given.wanted else 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
