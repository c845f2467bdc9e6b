"""Run the suite: ``python -m sdks.conformance LANGUAGE [--wire rest|grpc] [--only PART] [--defect NAME]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from penstock.testing.postgres import run_directory, shared_server
from sdks.conformance.driver import WIRES, Driver, cases
from sdks.conformance.programs import LANGUAGES


def main() -> int:
    """0 when all scenarios passed, 1 when some failed, 2 when the language's tools are not here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("language", choices=LANGUAGES)
    parser.add_argument("--wire", choices=WIRES)
    parser.add_argument("--only", default="", help="scenarios whose name or rule holds this; several by commas")
    parser.add_argument("--defect", help="break the Python worker in this way")
    parser.add_argument("--no-build", action="store_true")
    given = parser.parse_args()
    language = LANGUAGES[given.language]
    if language.missing:
        print(f"**** NOT RUN: no {' and no '.join(language.missing)} on this machine ****", file=sys.stderr)
        return 2
    if not given.no_build:
        language.build()
    only = given.only.split(",")
    chosen = [
        case._replace(defect=given.defect or "")
        for case in cases((given.wire,) if given.wire else WIRES)
        if any(part in f"{case.scenario['id']} {case.scenario['rule']}" for part in only)
    ]
    begun = time.monotonic()

    def report(name: str, problem: str | None) -> None:
        print(f"{time.monotonic() - begun:6.1f} s {'ok    ' if problem is None else 'FAILED'} {name}", flush=True)
        if problem is not None:
            print(problem, flush=True)

    with (
        tempfile.TemporaryDirectory() as directory,
        shared_server(run_directory(durable=False), durable=False) as server,
    ):
        failures = Driver(language, server, Path(directory)).run(chosen, report)
    print(f"{len(chosen) - len(failures)} passed, {len(failures)} failed", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
