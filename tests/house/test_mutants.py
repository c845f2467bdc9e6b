"""The mutants can be put into the source as it is today; `python -m tests.mutants` shows that the tests find them."""

from __future__ import annotations

import ast

import pytest

from tests.house.sources import TOP
from tests.mutants.mutants import Mutant, all_mutants

PACKAGES = {"core", "kernel", "engine", "store", "http", "access"}
MUTANTS = 60


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda mutant: f"{mutant.package}/{mutant.name}")
def test_a_mutant_has_its_place_in_the_source(mutant: Mutant) -> None:
    sound = (TOP / mutant.file).read_text()
    faulty = mutant.applied(sound)
    assert faulty != sound
    if mutant.file.endswith(".py"):
        ast.parse(faulty)
    assert [test for test in mutant.tests if not (TOP / test).exists()] == []


def test_sixty_mutants_are_spread_over_six_packages() -> None:
    found = all_mutants()
    assert len({one.name for one in found}) == len(found) >= MUTANTS
    assert {one.package for one in found} == PACKAGES
    assert {one.package for one in found if one.file.split("/")[2] != one.package} == set()


def test_a_mutant_without_its_place_is_reported() -> None:
    with pytest.raises(ValueError, match=r"core/gone: src/a\.py has its text 0 times"):
        Mutant("core", "gone", "src/a.py", "old", "new", []).applied("another text")
