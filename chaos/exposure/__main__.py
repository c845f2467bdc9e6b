"""`python -m chaos.exposure [--source CHECKOUT] ATTACK…|all`: what attacks cost an engine, and whether it answers.

CPU seconds of the engine, worst probe, longest turn of its loop, peak memory. "its own" is the worst probe without
waiting for a core, "CPU ms" the most of the processor that one turn took.
``--source`` measures the engine of another checkout (before and after), with this one's attacks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from chaos.exposure import doors, memory, rig, work

ATTACKS: dict[str, rig.Attack] = {**work.ATTACKS, **memory.ATTACKS, **doors.ATTACKS}
SETTINGS = {**work.SETTINGS, **doors.SETTINGS}
HEAD = f"{'attack':20}  CPU s probe, ms its own turn, ms CPU ms  unanswered  peak MB"


def main() -> None:
    names = "\n".join(f"  {name:20} {attack.__doc__}" for name, attack in ATTACKS.items())
    parser = argparse.ArgumentParser(
        prog="chaos.exposure", epilog=f"attacks:\n{names}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attack", nargs="+", choices=[*ATTACKS, "all"], metavar="ATTACK")
    parser.add_argument("--source", type=Path, default=rig.REPOSITORY, help="a checkout, whose engine is attacked")
    options = parser.parse_args()
    wanted = list(ATTACKS) if "all" in options.attack else options.attack
    print(HEAD)
    for name in wanted:
        found = rig.measure(ATTACKS[name], options.source, **SETTINGS.get(name, {}))
        print(
            f"{name:20} {found.cpu_s:6.2f} {found.worst_probe_ms:9.0f} {found.worst_probe_own_ms:7.0f}"
            f" {found.longest_turn_ms:8.0f} {found.longest_turn_cpu_ms:6.0f} {found.unanswered:11} {found.peak_mb:8.0f}"
            f"  {found.outcome}",
            flush=True,
        )


if __name__ == "__main__":
    main()
