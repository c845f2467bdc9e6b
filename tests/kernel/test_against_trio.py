"""The kernel gives for random programs what Trio gives. More: `python -m tests.kernel.oracle --count 100000`."""

from __future__ import annotations

import pytest
import trio

from tests.kernel.oracle import compare
from tests.kernel.programs import Programs

PROGRAMS = 1_000
LOST = (69, 116, 122)
"""Seeds of programs in which rules 0 lose a message, an item or a permit."""


@pytest.mark.slow(reason="hundreds of random programs")
@pytest.mark.parametrize("ties", [False, True], ids=["no ties", "ties"])
def test_random_programs_give_one_of_trios_results(ties, monkeypatch):
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    found = {seed: compare(seed, ties=ties) for seed in range(PROGRAMS)}
    assert {seed: problem for seed, (problem, _, _) in found.items() if problem} == {}
    assert sum(records for _, records, _ in found.values()) > PROGRAMS  # the programs do something
    assert sum(several for _, _, several in found.values()) > 10  # and their order matters at times


def test_messages_come_to_branches_that_may_lose() -> None:
    """At least 30 % of receives stand in `first`, `each`, a nursery or a scope; several names, early and late."""
    counts, names, moments = {True: 0, False: 0}, set[str](), list[float]()

    def probe(value: object, inside: bool) -> None:
        if isinstance(value, tuple) and value and value[0] == "message":
            counts[inside] += 1
            names.add(value[2])
        elif isinstance(value, tuple | list):
            inner = isinstance(value, tuple) and value and value[0] in ("first", "each", "nursery", "timeout", "scope")
            for each in value:
                probe(each, inside or bool(inner))

    for seed in range(PROGRAMS):
        program = Programs(seed, ties=True).program()
        probe(program.body, False)
        moments += [at for at, _, _ in program.messages]
    assert counts[True] > 0.3 * sum(counts.values())
    assert len(names) > 2
    assert min(moments) < 2
    assert max(moments) > 6


def test_the_rules_of_before_lost_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    for seed in LOST:
        problem, _, _ = compare(seed, ties=True, rules=0, orders=20)
        assert "none of Trio's" in problem
        assert compare(seed, ties=True) == ("", *compare(seed, ties=True)[1:])
