"""The workers and clients of all languages pass the conformance suite, and broken ones do not."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from penstock.testing.postgres import PostgresServer
from sdks.conformance.driver import WIRES, Driver, cases, parts, rules, scenarios
from sdks.conformance.programs import LANGUAGES, SDKS, build_once
from sdks.conformance.python.defects import DEFECTS
from tests.sdk.running_engine import RunningEngine, running_engine

EACH: Final = (
    "python",
    pytest.param("go", marks=pytest.mark.go),
    pytest.param("typescript", marks=pytest.mark.node),
    pytest.param("java", marks=(pytest.mark.jdk, pytest.mark.maven)),
)
LINES_MAX: Final = 2_500
SOURCES: Final = {"go": "*.go", "typescript": "src/*.ts", "java": "src/main/java/**/*.java"}


@pytest.fixture(scope="module")
def shared_engine(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """For all scenarios that leave it running: each has names of its own."""
    with running_engine(postgres_server, tmp_path_factory.mktemp("engine")) as engine:
        yield engine


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


NOTICED_AT_ONCE: Final = {
    "forgets_results": "a-result-is-merged",
    "rounds_numbers": "whole-numbers-of-any-size",
    "takes_what_does_not_fit_for_a_fault_that_passes": "typed-variables-of-a-wrong-type",
    "sends_no_attempt": "the-attempt-goes-back",
    "always_says_retryable": "a-failure-for-good",
    "sends_no_code": "an-error-with-another-code",
    "sends_no_pause": "a-failure-asks-for-a-pause",
    "sends_no_stack": "an-error-tells-where-it-happened",
    "tells_the_wrong_attempt": "a-handler-knows-its-job",
    "makes_a_key_for_each_attempt": "the-key-stays-in-all-attempts",
    "forgets_the_rules_of_a_start": "start-with-an-instance-key",
    "tells_errors_without_their_code": "get-an-unknown-instance",
    "sends_no_variables": "start-and-get",
    "reads_one_page": "list-all",
}
"""By defect, a scenario that fails by what it sees, not by waiting: these tell nothing of a busy machine.

All defects, and whether each scenario notices one, is what ``python -m sdks.conformance.broken`` plays.
"""


@pytest.mark.slow(reason="plays scenarios with workers that are broken on purpose")
def test_broken_workers_are_noticed(
    postgres_server: PostgresServer, shared_engine: RunningEngine, tmp_path: Path
) -> None:
    of = {case.scenario["id"]: case for case in cases(("rest",))}
    chosen = [of[scenario]._replace(defect=defect) for defect, scenario in NOTICED_AT_ONCE.items()]
    driver = Driver(LANGUAGES["python"], postgres_server, tmp_path, engine=shared_engine)
    failures = driver.run(chosen, lambda name, problem: None)
    assert failures.keys() == {case.name for case in chosen}
    assert [text for text in failures.values() if text.startswith(("not within", "Traceback"))] == []


@pytest.mark.jdk
@pytest.mark.maven
@pytest.mark.slow(reason="builds the Java program and starts it")
@pytest.mark.timeout(1_200)  # the first waits for the build
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_java_program_finds_its_classes_ready(
    postgres_server: PostgresServer, leave_out: Callable[[str], None], tmp_path: Path, scheme: str
) -> None:
    """Without them each start takes half as much CPU again, and nothing else would tell."""
    java = LANGUAGES["java"]
    build_once(java, postgres_server.directory.name)
    if not [*(SDKS / "java" / "target").glob("*.jsa")]:
        leave_out("this Java keeps no classes")
    told = tmp_path / "classes"
    environment = {"PENSTOCK_URL": f"{scheme}://127.0.0.1:1", "JAVA_TOOL_OPTIONS": f"-Xlog:class+load:file={told}"}
    # Over gRPC there is no client, and it ends at once: with its classes.
    subprocess.run([*java.run, "client"], env=os.environ | environment, stdin=subprocess.DEVNULL, capture_output=True)
    own = [line for line in told.read_text().splitlines() if " io.penstock.sdk.Conformance " in line]
    assert len(own) == 1
    assert "source: shared objects file" in own[0]


PLAYED: Final = [(part, wire) for part in parts() for wire in WIRES if cases((wire,), part)]


# Connections that a proxy breaks on purpose end in threads of servers that are not ours.
@pytest.mark.filterwarnings("default::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("default::ResourceWarning")
@pytest.mark.slow(reason="builds programs of other languages and plays scenarios with them")
@pytest.mark.timeout(1_200)  # the first of a language waits for its build
@pytest.mark.parametrize(("part", "wire"), PLAYED)
@pytest.mark.parametrize("language", EACH)
def test_a_language_passes_all_scenarios(
    postgres_server: PostgresServer, shared_engine: RunningEngine, tmp_path: Path, language: str, part: str, wire: str
) -> None:
    build_once(LANGUAGES[language], postgres_server.directory.name)
    driver = Driver(LANGUAGES[language], postgres_server, tmp_path, engine=shared_engine)
    chosen = cases((wire,), part)
    assert driver.run(chosen, lambda name, problem: None) == {}
