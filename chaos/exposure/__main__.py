"""`python -m chaos.exposure [--source CHECKOUT] ATTACK…|all`: CPU seconds of the engine, worst probe, peak memory.

``--source`` measures the engine of another checkout (before and after), with this one's attacks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from chaos.exposure import memory, rig, work

ATTACKS: dict[str, rig.Attack] = {**work.ATTACKS, **memory.ATTACKS}


def main() -> None:
    names = "\n".join(f"  {name:20} {attack.__doc__}" for name, attack in ATTACKS.items())
    parser = argparse.ArgumentParser(
        prog="chaos.exposure", epilog=f"attacks:\n{names}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attack", nargs="+", choices=[*ATTACKS, "all"], metavar="ATTACK")
    parser.add_argument("--source", type=Path, default=rig.REPOSITORY, help="a checkout, whose engine is attacked")
    options = parser.parse_args()
    wanted = list(ATTACKS) if "all" in options.attack else options.attack
    print(f"{'attack':20} {'CPU s':>7} {'probe, worst ms':>16} {'unanswered':>11} {'peak MB':>8}  outcome")
    for name in wanted:
        found = rig.measure(ATTACKS[name], options.source)
        print(
            f"{name:20} {found.cpu_s:7.2f} {found.worst_probe_ms:16.0f} {found.unanswered:11} {found.peak_mb:8.0f}"
            f"  {found.outcome}",
            flush=True,
        )


if __name__ == "__main__":
    main()
