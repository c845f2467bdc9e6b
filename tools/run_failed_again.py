"""Decides about tests that failed once in a whole run: python tools/run_failed_again.py

A shared machine that stalls for seconds makes a test among thousands fail that is right. A test that fails for what
it tests fails again. So up to LIMIT failed tests are run again, each ROUNDS times and with nothing beside it. Passing
each time lets the run pass, and prints their names for somebody to mend; anything else fails it: more tests than
LIMIT, one that fails again, a run that ended before its tests did (no list of failures).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LIMIT = 3
ROUNDS = 3
FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    failed = list(json.loads(FAILED.read_text())) if FAILED.exists() else []
    if not 0 < len(failed) <= LIMIT:
        print(f"{len(failed)} tests failed; 1 to {LIMIT} would be run again", file=sys.stderr)
        return 1
    if any("::" not in name for name in failed):
        print(f"not only tests failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    for turn in range(ROUNDS):
        print(f"round {turn + 1} of {ROUNDS}: {' '.join(failed)}", flush=True)
        # Without the cache: --last-failed of a passed round would be empty, and the next one run nothing.
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *failed]
        if subprocess.call(command) != 0:
            return 1
    print("\n**** FAILED ONCE, PASSED ALONE (mend them: they depend on the machine's speed) ****")
    for name in failed:
        print(f"**** {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
