"""Show that scenarios notice: ``python -m sdks.conformance.broken [--rule RULE] [--defect NAME] [--all]``.

Each defect of `python/defects.py` breaks the Python worker or client. It is noticed when a scenario of each of its
rules fails; a scenario that every defect of its rule passes asks for nothing. To tell a defect from a program that no
longer works at all, a plain scenario has to pass with it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from penstock.testing.postgres import PostgresServer, run_directory, shared_server
from sdks.conformance.driver import WIRES, Case, Driver, cases
from sdks.conformance.programs import LANGUAGES
from sdks.conformance.python.defects import DEFECTS

WAIT_S = 20.0
"""Many scenarios wait in vain for what a broken program does not do."""
PLAIN = ("a-result-may-be-nothing", "cancel")
"""What a broken worker, and a broken client, does still."""


def chosen_cases(names: Iterable[str], every: Sequence[Case], *, all_rules: bool = False) -> list[Case]:
    """For each defect the cases of its rules, or all, and the plain ones that must pass."""
    return [
        case._replace(defect=name)
        for name in names
        for case in every
        if all_rules or case.scenario["rule"] in DEFECTS[name].rules or _plain(case, name)
    ]


def _plain(case: Case, name: str) -> bool:
    of_client = any(rule in ("list-by-cursor", "start-rules") or "client" in rule for rule in DEFECTS[name].rules)
    return case.wire == "rest" and case.scenario["id"] == PLAIN[of_client]


def problems_of(played: Sequence[Case], failures: Mapping[str, str]) -> list[str]:
    """What is wrong with defects and scenarios, a line each. ``failures`` are by the names of cases."""
    found = []
    for name in dict.fromkeys(case.defect for case in played):
        mine = [case for case in played if case.defect == name]
        found += [
            f"{name}: no scenario of {rule} fails"
            for rule in DEFECTS[name].rules
            if not any(case.name in failures for case in mine if case.scenario["rule"] == rule)
        ]
        broken = [case for case in mine if _plain(case, name) and case.name in failures]
        found += [f"{name}: breaks everything:\n{failures[case.name]}" for case in broken]
    return found


def unnoticing(played: Sequence[Case], failures: Mapping[str, str]) -> list[str]:
    """The scenarios that pass with every defect of their rule that was played."""
    judged = [case for case in played if case.scenario["rule"] in DEFECTS[case.defect].rules]
    noticed = {case.scenario["id"] for case in judged if case.name in failures}
    return [each for each in dict.fromkeys(case.scenario["id"] for case in judged) if each not in noticed]


def run(
    server: PostgresServer, directory: Path, played: Sequence[Case], report: Callable[[str, str | None], None]
) -> dict[str, str]:
    """Play the cases with the broken Python program. Return what failed, by the case's name."""
    return Driver(LANGUAGES["python"], server, directory, WAIT_S).run(played, report)


def main() -> int:
    """0 when every defect and every scenario is as it has to be, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", action="append", help="only defects of this rule; may come more than once")
    parser.add_argument("--defect", action="append", choices=sorted(DEFECTS), help="only this one")
    parser.add_argument("--all", action="store_true", help="all scenarios with each defect, not only its rules'")
    given = parser.parse_args()
    names = [
        name
        for name, each in DEFECTS.items()
        if (not given.defect or name in given.defect) and (not given.rule or {*given.rule} & {*each.rules})
    ]
    played = chosen_cases(names, cases(WIRES), all_rules=given.all)
    begun = time.monotonic()

    def report(name: str, problem: str | None) -> None:
        reported = "passes" if problem is None else f"FAILS: {problem.splitlines()[0][:160]}"
        print(f"{time.monotonic() - begun:6.1f} s {name} {reported}", flush=True)

    with (
        tempfile.TemporaryDirectory() as directory,
        shared_server(run_directory(durable=False), durable=False) as server,
    ):
        failures = run(server, Path(directory), played, report)
    problems = problems_of(played, failures)
    idle = unnoticing(played, failures)
    print(*problems, *(f"{each}: passes with every defect of its rule" for each in idle), sep="\n")
    print(f"{len(names)} defects, {len(problems)} problems, {len(idle)} scenarios that notice nothing")
    return 1 if problems or idle else 0


if __name__ == "__main__":
    sys.exit(main())
