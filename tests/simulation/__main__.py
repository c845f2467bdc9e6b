"""`python -m tests.simulation [--seed S] [--worlds N | --seconds T]`."""

from __future__ import annotations

import argparse
import time
from collections import Counter

from tests.simulation.simulate import simulate, simulate_schedules


def run_worlds(seed: int, seconds: float, worlds: int = 0) -> None:
    """As many worlds as asked for, or as fit into the time; prints what happened. Raises what a world raises."""
    began = time.monotonic()
    seen: Counter[str] = Counter()
    done = 0
    while done < worlds or (not worlds and time.monotonic() - began < seconds):
        seen += simulate(seed + done)
        seen += simulate_schedules(seed + done)
        done += 1
    took_s = time.monotonic() - began
    print(f"{done} worlds from seed {seed}, {took_s:.1f} s,")
    print(f"{seen['histories'] / took_s * 60:.0f} histories per minute")
    for what, count in sorted(seen.items()):
        print(f"  {count:8} {what}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, default=0, help="of the first world; the others count on from it")
    parser.add_argument("--worlds", type=int, default=0, help="how many; 0: as many as fit into the time")
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    run_worlds(options.seed, options.seconds, options.worlds)


if __name__ == "__main__":
    main()
