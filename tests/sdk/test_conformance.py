"""The workers and clients of all languages pass the conformance suite, and broken ones do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from penstock.testing.postgres import PostgresServer
from sdks.conformance.driver import WIRES, Case, Driver, cases, parts, rules, scenarios
from sdks.conformance.programs import LANGUAGES, SDKS, build_once
from sdks.conformance.python.defects import DEFECTS

EACH: Final = (
    "python",
    pytest.param("go", marks=pytest.mark.go),
    pytest.param("typescript", marks=pytest.mark.node),
    pytest.param("java", marks=(pytest.mark.jdk, pytest.mark.maven)),
)
LINES_MAX: Final = 2_500
SOURCES: Final = {"go": "*.go", "typescript": "src/*.ts", "java": "src/main/java/**/*.java"}


def played(
    server: PostgresServer, directory: Path, language: str, chosen: list[Case], **environment: str
) -> dict[str, str]:
    return Driver(LANGUAGES[language], server, directory, environment).run(chosen, lambda name, problem: None)


def faulty(scenario: object) -> bool:
    return any(
        word in json.dumps(scenario) for word in ('"faults"', '"engine"', '"proxy"', '"KILL"', '"STOP"', '"crash"')
    )


def test_there_are_scenarios_enough_and_each_has_a_rule() -> None:
    names = [each["id"] for each in scenarios()]
    assert len(names) == len(set(names)) >= 60
    assert sum(faulty(each) for each in scenarios()) >= 20
    assert {each["rule"] for each in scenarios()} == rules().keys()


def test_each_rule_has_a_defect() -> None:
    assert {rule for defect in DEFECTS.values() for rule in defect.rules} == rules().keys()


@pytest.mark.parametrize("language", SOURCES)
def test_an_sdk_stays_small(language: str) -> None:
    files = [*(SDKS / language).glob(SOURCES[language])]
    assert files
    assert sum(len(path.read_text().splitlines()) for path in files) <= LINES_MAX


PLAYED: Final = [(part, wire) for part in parts() for wire in WIRES if cases((wire,), part)]


# Connections that a proxy breaks on purpose end in threads of servers that are not ours.
@pytest.mark.filterwarnings("default::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("default::ResourceWarning")
@pytest.mark.slow(reason="builds programs of other languages and plays scenarios with them")
@pytest.mark.parametrize(("part", "wire"), PLAYED)
@pytest.mark.parametrize("language", EACH)
def test_a_language_passes_all_scenarios(
    postgres_server: PostgresServer, tmp_path: Path, language: str, part: str, wire: str
) -> None:
    build_once(LANGUAGES[language], postgres_server.directory.name)
    chosen = cases((wire,), part)
    failures = played(postgres_server, tmp_path, language, chosen)
    if failures:  # what a stalled machine fails does not fail twice
        failures = played(postgres_server, tmp_path, language, [case for case in chosen if case.name in failures])
    assert failures == {}
