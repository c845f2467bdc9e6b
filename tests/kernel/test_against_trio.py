"""The kernel gives for random programs what Trio gives. More of them: `python -m tests.kernel.oracle 100000`."""

from __future__ import annotations

import pytest
import trio

from tests.kernel.oracle import compare

PROGRAMS = 1_000


@pytest.mark.slow(reason="hundreds of random programs")
@pytest.mark.parametrize("ties", [False, True], ids=["no ties", "ties"])
def test_random_programs_give_one_of_trios_results(ties, monkeypatch):
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    found = {seed: compare(seed, ties=ties) for seed in range(PROGRAMS)}
    assert {seed: problem for seed, (problem, _, _) in found.items() if problem} == {}
    assert sum(records for _, records, _ in found.values()) > PROGRAMS  # the programs do something
    assert sum(several for _, _, several in found.values()) > 10  # and their order matters at times
