"""The workers of docs/other-languages.md do jobs; the page holds the files word for word."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import msgspec
import pytest

from penstock.client import SyncClient, TimedOut
from penstock.testing.postgres import PostgresServer
from tests.house.sources import TOP
from tests.sdk.faulty_engine import POLL, Answer, FaultyEngine, serving
from tests.sdk.running_engine import RunningEngine, running_engine

WORKERS: Final = TOP / "examples" / "workers"
PAGE: Final = TOP / "docs" / "other-languages.md"
GREETING: Final = {
    "id": "greeting",
    "name": "Greeting",
    "steps": [
        {"id": "say", "name": "Say", "type": "SERVICE_TASK", "jobType": "greeting.say", "nextStep": "end"},
        {"id": "end", "name": "End", "type": "END"},
    ],
}
EACH: Final = (
    "worker.mjs",
    pytest.param("worker.go", marks=pytest.mark.go),
    pytest.param("Worker.java", marks=pytest.mark.jdk),
)
NO_CONTENT: Final = Answer(204, b"")
COMMANDS: Final = {
    "worker.mjs": ("node",),
    "worker.go": ("go", "run"),
    "Worker.java": ("java",),
}


@pytest.fixture(scope="module")
def engine(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with running_engine(postgres_server, tmp_path_factory.mktemp("engine")) as running:
        with SyncClient(running.url) as client:
            client.upload_definition(GREETING)
        yield running


def test_the_page_holds_every_worker_word_for_word() -> None:
    for folder in (WORKERS, WORKERS / "library"):
        files = sorted(path.name for path in folder.iterdir() if path.is_file())
        assert files == sorted(COMMANDS)
        assert [name for name in files if (folder / name).read_text() not in PAGE.read_text()] == []


@pytest.mark.slow(reason="programs of other languages")
@pytest.mark.parametrize("name", EACH)
def test_a_worker_in_another_language_completes_jobs(engine: RunningEngine, tmp_path: Path, name: str) -> None:
    greets(engine, [*COMMANDS[name], str(WORKERS / name)], tmp_path, GO111MODULE="off")


def greets(engine: RunningEngine, command: list[str], directory: Path, **environment: str) -> None:
    """The program, run in the directory, does a job of the type greeting.say."""
    with running(command, directory, PENSTOCK_URL=engine.url, **environment) as worker:
        try:
            with SyncClient(engine.url) as client:
                made = client.start_instance("greeting", {"name": "Ada"})
                ended = client.wait_until_ended(made.id, timeout_s=120)
        except TimedOut as error:
            raise AssertionError(worker.log.read_text()) from error
    assert (ended.status, ended.variables["greeting"]) == ("COMPLETED", "Hello, Ada")


class Program(NamedTuple):
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def running(command: list[str], directory: Path, **environment: str) -> Generator[Program]:
    """The program in the directory, until it is killed."""
    assert shutil.which(command[0]), f"no {command[0]} on this machine"
    log = directory / "log"
    with log.open("w+") as file:
        process = subprocess.Popen(
            command,
            env=os.environ | {"GOFLAGS": "-mod=mod"} | environment,
            cwd=directory,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            yield Program(process, log)
        finally:
            os.killpg(process.pid, 9)  # `go run` has a child of its own
            process.wait()


def job(number: int, variables: object) -> Answer:
    """The answer to a poll with one job."""
    reported = {"id": f"j{number}", "jobType": "greeting.say", "variables": variables, "attempt": number}
    return Answer(200, msgspec.json.encode({"jobs": [reported]}))


@pytest.mark.slow(reason="programs of other languages, which pause for a second after each fault")
@pytest.mark.parametrize("name", EACH)
def test_a_worker_meets_each_fault_of_an_engine(tmp_path: Path, name: str) -> None:
    """Answers of all kinds to its polls, jobs without what they need, what is no job beside one, reports without an
    answer and a refused one."""
    faults = [
        Answer(401, b'{"error": "no token"}'),
        Answer(500, b"broken"),
        Answer(200, b"<html>"),
        None,
        Answer(200, b"{}"),
        Answer(200, b"[" * 200_000),
        Answer(200, b'{"jobs": {"id": "j9"}}'),
    ]
    no_jobs = [None, 7, "j9", [], {}, {"id": 9, "attempt": 1}, {"id": None}]
    last = {"id": "j7", "jobType": "greeting.say", "variables": {"name": "Eve"}, "attempt": 7}
    jobs = [
        job(1, {"of": {"name": "Bob"}}),
        job(2, None),
        job(3, {"name": 'A"d\\a\n'}),
        job(4, {"name": "\u00e9\U0001f600"}),
        job(5, ["Bob"]),
        job(6, "Bob"),
        Answer(200, msgspec.json.encode({"jobs": [*no_jobs, last]})),
    ]
    engine = FaultyEngine(
        [*faults, *jobs],
        [NO_CONTENT, NO_CONTENT, None, Answer(500, b""), NO_CONTENT, Answer(409, b"{}"), *[NO_CONTENT] * 3],
    )
    with (
        serving(engine) as url,
        running(
            [*COMMANDS[name], str(WORKERS / name)],
            tmp_path,
            PENSTOCK_URL=url,
            PENSTOCK_TOKEN="secret",
            GO111MODULE="off",
        ) as worker,
    ):
        assert engine.done.wait(120), worker.log.read_text()
        assert worker.process.poll() is None
    polls = [asked for asked in engine.asked if asked.path == POLL]
    assert all(later.at - former.at > 0.5 for former, later in pairwise(polls[: len(faults) + 1]))
    assert {asked.token for asked in engine.asked} == {"Bearer secret"}
    log = worker.log.read_text()
    assert "401" in log
    assert "500" in log
    assert len(log.splitlines()) >= len(faults)
    *reports, (path, body) = [(asked.path, asked.body) for asked in engine.asked if asked.path != POLL]
    assert (path, body["attempt"], body["variables"]) == ("/v1/jobs/j7/complete", 7, {"greeting": "Hello, Eve"})
    for number, (path, body) in zip((1, 2, 5, 6), [*reports[:2], *reports[-2:]], strict=True):
        assert path == f"/v1/jobs/j{number}/fail"
        assert (body["attempt"], body["retryable"]) == (number, False)
        assert "name" in str(body["errorMessage"])
    assert [(path, body["attempt"], body["variables"]) for path, body in reports[2:-2]] == [
        *[("/v1/jobs/j3/complete", 3, {"greeting": 'Hello, A"d\\a\n'})] * 3,
        ("/v1/jobs/j4/complete", 4, {"greeting": "Hello, \u00e9\U0001f600"}),
    ]
    assert {asked.body["workerId"] for asked in engine.asked} == {polls[0].body["workerId"]}


@pytest.mark.slow(reason="programs of other languages")
@pytest.mark.libraries
@pytest.mark.parametrize("name", EACH)
def test_a_worker_with_the_contracts_library_completes_jobs(engine: RunningEngine, tmp_path: Path, name: str) -> None:
    libraries = Path(os.environ["PENSTOCK_LIBRARIES"])
    shutil.copy(WORKERS / "library" / name, tmp_path)
    command = [*COMMANDS[name], name]
    if name == "worker.mjs":
        (tmp_path / "node_modules").mkdir()
        (tmp_path / "node_modules" / "rochallor-workflow-sdk").symlink_to(libraries / "workflow-sdk-node")
    elif name == "worker.go":
        module = "github.com/batnam/rochallor-engine/workflow-sdk-go"
        needed = f"require {module} v0.0.0\nreplace {module} => {libraries / 'workflow-sdk-go'}\n"
        (tmp_path / "go.mod").write_text(f"module worker\n\ngo 1.22\n\n{needed}")
        shutil.copy(libraries / "workflow-sdk-go" / "go.sum", tmp_path)
    else:
        command[1:1] = ["-cp", f"{libraries / 'workflow-sdk-java' / 'build' / 'libs'}/*"]
    greets(engine, command, tmp_path)


@pytest.mark.slow(reason="programs of other languages")
@pytest.mark.parametrize("nothing", [{}, {"variables": None}, {"variables": {}}], ids=["node", "go", "java"])
def test_libraries_of_the_contract_send_no_more_than_it_has(engine: RunningEngine, nothing: dict[str, object]) -> None:
    """Polls without a wait, reports without an attempt; what sets no variables says so in each language's own way."""
    with SyncClient(engine.url) as client, httpx.Client(base_url=engine.url, trust_env=False, timeout=60) as library:
        done, failed = (client.start_instance("greeting", {"name": name}).id for name in ("Ada", "Bob"))
        poll = {"workerId": "theirs", "jobTypes": ["greeting.say"], "maxJobs": 64}
        jobs = {job["instanceId"]: job for job in library.post("/v1/jobs/poll", json=poll).json()["jobs"]}
        assert library.post("/v1/jobs/poll", json=poll).json() == {"jobs": []}
        assert {"id", "jobType", "variables", "retriesRemaining", "attempt"} <= jobs[done].keys()
        reports = {
            f"/v1/jobs/{jobs[done]['id']}/complete": {"workerId": "theirs", **nothing},
            f"/v1/jobs/{jobs[failed]['id']}/fail": {"workerId": "theirs", "errorMessage": "no", "retryable": False},
        }
        assert [library.post(path, json=body).status_code for path, body in reports.items()] == [204, 204]
        assert client.get_instance(done).variables == {"name": "Ada"}
        assert [client.get_instance(id).status for id in (done, failed)] == ["COMPLETED", "FAILED"]
