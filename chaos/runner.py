"""One attack from start to verdict: faults one after another, for a time, on a rig of their own.

The n-th fault of a seed is always the same one with the same choices, whatever happened before; when it comes depends
on how long those before it took. A replay strikes the recorded faults again, each not before its recorded time. What
the operating system makes of it differs from run to run: a replay repeats the attack, not the interleaving.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import trio

from chaos.faults import FAULTS, may_mount
from chaos.rig import NotSettled, Rig, Watch
from chaos.unkeyed import counted
from chaos.verdict import judge

RATE = 12.0
GAP_S = (0.2, 2.5)
"""The pause between two faults."""
FAULTS_MIN = 2
"""However long the first one takes: one fault alone is no attack."""
CLOCK_BACK = frozenset({"time does not run backwards within a step execution"})
"""Not to be had when the database's own clock goes back."""
CRASH_LINES = ("the engine crashed", "a statement failed", "the engine stopped: it could not go on")
"""Not "could not start": without its database it may not, and whoever supervises it tries again."""
SHOWN_MAX = 20
ALONE = ("lock-tables", "promote-standby")
"""Need a rig that does not fit the others."""


class Struck(msgspec.Struct, frozen=True):
    """One fault as it was struck: ``at`` seconds after the load began, ``number`` for its choices."""

    at: float
    number: int
    name: str
    detail: str = ""


class Attack(msgspec.Struct, frozen=True):
    """What to do: any of ``faults``, chosen by the seed, for so many seconds at so many starts per second."""

    name: str
    faults: Sequence[str]
    seed: str
    seconds: float
    rate: float = RATE
    gap_s: tuple[float, float] = GAP_S


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was done and found. ``broken`` is empty when every guarantee held."""

    attack: Attack
    struck: list[Struck]
    broken: list[str]
    counts: dict[str, int]
    checked: dict[str, int]
    settled_s: float
    took_s: float
    left_out: list[str] = []


def attacks(names: Sequence[str], seed: str, seconds: float, rate: float = RATE) -> list[Attack]:
    """One per name; ``everything`` is all faults mixed that fit on one rig."""
    found: list[Attack] = []
    for name in names:
        faults = [each for each in FAULTS if each not in ALONE] if name == "everything" else [name]
        found.append(Attack(name, faults, seed, seconds, rate))
    return found


async def run(
    attack: Attack,
    directory: Path,
    *,
    replay: Sequence[Struck] | None = None,
    watch: Watch | None = None,
    spare: int = 0,
) -> Report:
    """Run one attack in ``directory``, which has to be new and may be entered by PostgreSQL's account.

    ``replay``: these faults instead of the seed's. ``watch``: what looks on meanwhile. ``spare``: engines not to kill.
    """
    began = time.monotonic()
    faults = [name for name in attack.faults if "small disk" not in FAULTS[name].needs or may_mount()]
    left_out = sorted({*attack.faults} - {*faults})
    if not faults:
        return Report(
            attack=attack, struck=[], broken=[], counts={}, checked={}, settled_s=0, took_s=0, left_out=left_out
        )
    needs = frozenset[str]().union(*(FAULTS[name].needs for name in faults))
    rig = Rig(directory, attack.seed, rate=attack.rate, needs=needs, spare=spare)
    struck: list[Struck] = []

    async def inject(rig: Rig) -> None:
        start = trio.current_time()
        if replay is not None:
            for each in replay:
                await trio.sleep_until(start + each.at)
                await _strike(rig, each.number, each.name, start, struck)
            return
        number = 0
        while number < FAULTS_MIN or trio.current_time() - start < attack.seconds:
            rng = rig.rng(number)
            name = rng.choice(faults)
            await trio.sleep(rng.uniform(*attack.gap_s))
            await _strike(rig, number, name, start, struck)
            number += 1

    broken: list[str] = []
    checked: dict[str, int] = {}
    try:
        try:
            await rig.run(inject, watch)
        except* NotSettled as group:
            broken += [str(error) for error in group.exceptions]
        lenient = CLOCK_BACK if "database-clock" in faults else frozenset[str]()
        more, checked = judge(rig.dsn, directory / "journals", lenient)
        broken += more
        more, counts_of_unkeyed = counted(rig.dsn, directory / "journals")
        broken += more
        checked |= counts_of_unkeyed
        broken += _crashes(rig)
        broken += rig.complaints
    finally:
        with trio.CancelScope(shield=True):
            await rig.remove()
    counts = rig.counts + Counter({f"network: {name}": count for name, count in _network_counts(rig).items()})
    return Report(
        attack=attack, struck=struck, broken=broken, counts=dict(sorted(counts.items())), checked=checked,
        settled_s=round(rig.settled_s, 2), took_s=round(time.monotonic() - began, 1), left_out=left_out,
    )  # fmt: skip


async def _strike(rig: Rig, number: int, name: str, start: float, struck: list[Struck]) -> None:
    at = round(trio.current_time() - start, 2)
    rng = rig.rng(number)
    rng.choice([0])  # not the numbers that chose the fault
    detail = await FAULTS[name].inject(rig, rng)
    rig.counts["faults"] += 1
    struck.append(Struck(at, number, name, detail))


def _network_counts(rig: Rig) -> Counter[str]:
    return sum((proxy.counts for proxy in (rig.to_database, *rig.to_engines)), Counter[str]())


def _crashes(rig: Rig) -> list[str]:
    """What engines say of themselves and must not, and stops that were not in order."""
    found: list[str] = []
    for engine in rig.engines:
        bad = [line for line in engine.lines() if line.get("message") in CRASH_LINES]
        found += [f"{engine.name}: {msgspec.json.encode(line).decode()[:2000]}" for line in bad]
    found += [f"{count} engines ended with {what}" for what, count in rig.counts.items() if what in BAD_ENDS]
    return found


BAD_ENDS = tuple(f"engine exit code {code}" for code in (*range(1, 128), -9, -6, -11))


def new_directory(parent: Path, name: str) -> Path:
    """A directory that PostgreSQL's account may enter."""
    directory = Path(tempfile.mkdtemp(prefix=f"penstock-chaos-{name}-", dir=parent.absolute()))
    directory.chmod(0o755)
    return directory


def remove_directory(directory: Path) -> None:
    """With all that is in it."""
    shutil.rmtree(directory, ignore_errors=True)
