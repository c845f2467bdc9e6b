"""Some seconds of `python -m chaos` in the suite, from a fixed seed: all faults mixed, on real processes."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from chaos.faults import FAULTS
from chaos.runner import Attack, Report, Struck, attacks, new_directory, remove_directory, run
from chaos.waits import BURST_ITEMS

QUICK = ("kill-engine", "terminate-backends", "kill-backend", "kill-postgres", "kill-worker", "engine-network")
"""Those that don't hold still for seconds."""
SECONDS = 6.0
RATE = 8.0


@pytest.fixture
def directory() -> Generator[Path]:
    directory = new_directory(Path("/var/tmp"), "test")
    yield directory
    remove_directory(directory)


def show(report: Report) -> str:
    return "\n".join([f"{each.at} {each.name}: {each.detail}" for each in report.struck] + report.broken)


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_the_guarantees_hold_under_attack(directory: Path) -> None:
    report = await run(Attack("short", QUICK, "suite-1", SECONDS, RATE), directory)
    assert not report.broken, show(report)
    assert report.counts["faults"] >= 2
    assert report.checked["histories"] >= 20


WAITS = ("pause-in-transaction", "burst-on-drained", "beat-through-both", "retry-while-archiving", "nights")


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_work_in_the_middle_holds_up_nobody_else(directory: Path) -> None:
    faults = [Struck(0.1, number, name) for number, name in enumerate(WAITS)]
    report = await run(Attack("waits", WAITS, "suite-3", 1, RATE), directory, replay=faults)
    assert not report.broken, show(report)
    assert report.counts["engines stopped in a transaction"] == 1, show(report)
    assert report.counts["jobs in bursts"] == BURST_ITEMS
    assert report.counts["instances retried while others were archived"] >= 1
    assert report.counts["nights"] == 1


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_what_operators_delete_and_acknowledge_is_done_once(directory: Path) -> None:
    name = "operate-under-kills"
    report = await run(Attack(name, [name], "suite-5", 1, RATE), directory, replay=[Struck(0.1, 0, name)])
    assert not report.broken, show(report)
    assert report.counts["rounds of an operator under kills"] >= 1


@pytest.mark.slow(reason="attacks engine processes for seconds")
@pytest.mark.parametrize("name", ["terminate-in-commit", "promote-standby"])
async def test_nothing_acknowledged_is_lost_or_doubled_around_a_commit(directory: Path, name: str) -> None:
    twice = [Struck(1, 0, name), Struck(2, 1, name)]
    report = await run(Attack(name, [name], "suite-4", 1, RATE), directory, replay=twice)
    assert not report.broken, show(report)
    assert report.counts.get("sessions ended inside COMMITs", 5) >= 5, show(report)
    assert report.counts.get("standbys promoted", 2) == 2
    assert report.checked["starts without a key"] >= 5
    assert report.checked["signals without a key"] >= 2


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [*FAULTS, "everything"])
async def test_attack(directory: Path, name: str) -> None:
    (attack,) = attacks([name], "chaos-1", 15)
    report = await run(attack, directory)
    assert not report.broken, show(report)
    assert report.struck or report.left_out


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_a_replay_strikes_the_same_blows(directory: Path) -> None:
    struck = [Struck(0.1, 3, "terminate-backends"), Struck(0.6, 5, "kill-worker")]
    report = await run(Attack("replay", QUICK, "suite-2", 1, RATE), directory, replay=struck)
    assert not report.broken, show(report)
    assert [(each.number, each.name) for each in report.struck] == [(3, "terminate-backends"), (5, "kill-worker")]
