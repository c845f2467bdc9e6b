"""Queues of Penstock in library mode and of DBOS Transact, in turn, on one PostgreSQL: a number at once, and a rate.

    python -m benchmarks.peers.dbos.queues [--runs 2000] [--at-once 32] [--rate 200] [--rounds 1] [--json FILE]

Workflows of one step of 10 ms, all enqueued before. DBOS once as it comes (it looks into a queue every second) and once
with a look every 10 ms; the ratio is to the better. A queue of `--at-once` could do 100 times as many a second, if it
cost nothing. Of `--rate` a second a tenth may begin at once here (`burst`), in DBOS all of a period. Installs DBOS as
`python -m benchmarks.peers.dbos` does.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.peers.dbos import side_by_side
from benchmarks.peers.dbos.side_by_side import HERE, VERSION, calibrated, new_database, python_with_dbos, url_of

POLL_INTERVALS_S = (1.0, 0.01)
DATABASES = "penstock_bench", "dbos_bench"


def measured(command: list[str]) -> dict[str, float]:
    """What one process told."""
    with side_by_side.start(command) as process:
        reported: dict[str, float] = side_by_side.go(process)
        assert process.stdin is not None
        process.stdin.close()
    return reported


def ours(dsn: str, policy: dict[str, Any], runs: int) -> dict[str, float]:
    at = new_database(dsn, DATABASES[0])
    return measured(
        [
            sys.executable,
            "-m",
            "benchmarks.load.durable_queue",
            at,
            json.dumps({"jobTypes": [], **policy}),
            "--runs",
            str(runs),
        ]
    )


def theirs(python: str, dsn: str, policy: dict[str, Any], runs: int, poll_interval_s: float) -> dict[str, float]:
    url = url_of(new_database(dsn, DATABASES[1]))
    return measured([python, str(HERE / "queue_workload.py"), url, json.dumps(policy), str(runs), str(poll_interval_s)])


def compare(dsn: str, options: argparse.Namespace) -> dict[str, Any]:
    python = str(python_with_dbos(options.venv))
    result: dict[str, Any] = {
        "dbos": VERSION,
        "commit_p50_ms": calibrated(dsn, options.calibration_seconds),
        "found": [],
    }
    at_once, rate = options.at_once, options.rate
    limits = {
        f"{at_once} at once": ({"concurrency": at_once}, {"global_concurrency": at_once}, options.runs),
        f"{rate} a second": (
            {"rate": {"limit": rate, "period": "PT1S", "burst": max(1, rate // 10)}},
            {"limiter": {"limit": rate, "period": 1.0}},
            rate * 6,
        ),
    }
    for name, (our_policy, their_policy, runs) in limits.items():
        for _ in range(options.rounds):
            found = {"Penstock": ours(dsn, our_policy, runs)}
            _print_figures(name, "Penstock", found["Penstock"])
            for poll_interval_s in POLL_INTERVALS_S:
                kind = f"DBOS, a look every {poll_interval_s:g} s"
                found[kind] = theirs(python, dsn, their_policy, runs, poll_interval_s)
                _print_figures(name, kind, found[kind])
            best = max(figures["per_s"] for kind, figures in found.items() if kind != "Penstock")
            ratio = found["Penstock"]["per_s"] / best
            print(f"{name}: {ratio:.1f} × DBOS", flush=True)
            result["found"].append({"limit": name, "figures": found, "ratio": ratio})
    return result


def _print_figures(limit: str, kind: str, figures: dict[str, float]) -> None:
    print(
        f"{limit}, {kind:24}: {figures['per_s']:8,.0f} runs/s, most at once {figures['most_at_once']:.0f},"
        f" most within a second {figures['most_in_period']:.0f}, {figures['cpu_s']:.1f} s of CPU",
        flush=True,
    )


def main() -> None:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    side_by_side.run(compare, parser.parse_args())


if __name__ == "__main__":
    main()
