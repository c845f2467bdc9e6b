"""Another terminal beside a program: `penstock runs`, and REST of the program itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.durable.programs import Program, ended, own_directory, until
from tests.durable.test_app import ORDER, STARTS

COMMAND_MAX_S = 50
pytestmark = pytest.mark.slow(reason="programs on terminals of their own")

WAITS = "SELECT 1 FROM token WHERE state = 2"
RUNS = ORDER + 'print(app.run(order, 21, id="o-1"))\n'
SERVES_REST = (
    ORDER
    + """
app = App(order, rest_port=0)
with app.in_thread() as shop:
    run = shop.start(order, 21, id="o-1")
    print(app.rest_url, flush=True)
    print(run.result(50))
print(app.rest_url)
"""
)


@pytest.fixture
def directory() -> Generator[Path]:
    yield from own_directory()


def penstock(program: Program, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "penstock"), "runs", *words],
        cwd=program.directory, env=program.environment, capture_output=True, text=True, timeout=COMMAND_MAX_S,
    )  # fmt: skip


def reported(program: Program, *words: str) -> str:
    found = penstock(program, *words)
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout


def test_an_approval_reaches_a_program_with_the_embedded_database(directory: Path):
    program = Program(directory, RUNS)
    first = program.start()
    until(lambda: program.rows(WAITS) != [], first)
    assert reported(program, "send", "o-1", "approved", "by ann", "--dedup", "1") == "sent approved to o-1\n"
    code, said, errors = ended(first)
    assert (code, said) == (0, "42 by ann\n"), errors
    assert "penstock: from another terminal: penstock runs send o-1 approved JSON" in errors


@pytest.fixture
def serving(directory: Path, database_dsn: str) -> Generator[Program]:
    """A run that waits, of a program on a database that `PENSTOCK_AT` names."""
    program = Program(directory, RUNS)
    program.environment["PENSTOCK_AT"] = database_dsn
    running = program.start()
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        until(lambda: connection.execute(WAITS.encode()).fetchall() != [], running)
    yield program
    running.terminate()
    ended(running)


def test_runs_are_listed_and_shown_by_command(serving: Program):
    [head, row] = reported(serving, "list").splitlines()
    assert head.split()[:4] == ["id", "workflow", "started", "status"]
    assert re.fullmatch(r"o-1 +order +\d{4}-\d\d-\d\d [\d:]{8}(Z|[+-][\d:]+) +WAITING +message 'approved'", row)
    none = penstock(serving, "list", "order", "--status", "completed")
    why = "no such run of order in this database (`--at` names another)\n"
    assert (none.returncode, len(none.stdout.splitlines()), none.stderr) == (0, 1, why)
    [listed] = json.loads(reported(serving, "list", "order", "--json"))
    assert (listed["id"], listed["status"], listed["waitsFor"]) == ("o-1", "WAITING", "message 'approved'")
    assert reported(serving, "show", "o-1").splitlines() == [
        "o-1  order@1  WAITING",
        "waits for message 'approved'",
        "  /0 done pay",
        "  /1 waiting receive approved (program.py:19)",
    ]
    assert json.loads(reported(serving, "show", "o-1", "--json"))["id"] == listed["instanceId"]
    unknown = penstock(serving, "show", "o-2")
    assert (unknown.returncode, unknown.stderr) == (1, "penstock: there is no run with the id 'o-2'\n")


def test_a_run_is_cancelled_by_command(serving: Program):
    assert reported(serving, "cancel", "o-1", "--reason", "enough") == "asked o-1 to end\n"
    last = {}
    for _ in range(20):  # it cleans up, which takes a moment
        [last] = json.loads(reported(serving, "list", "--json"))
        if last["status"] == "CANCELLED":
            break
    assert (last["status"], last["failureReason"]) == ("CANCELLED", "enough")
    [paid, cancel] = [json.loads(line) for line in reported(serving, "journal", "o-1").splitlines()]
    assert (paid["kind"], paid["name"], paid["payload"]) == ("done", "pay", 42)
    assert (cancel["kind"], cancel["payload"]["reason"]) == ("cancel", "enough")
    late = penstock(serving, "send", "o-1", "approved", '"too late"')
    assert (late.returncode, late.stdout) == (1, "")
    assert late.stderr == "penstock: run o-1: the run has ended: it is CANCELLED\n"


def test_a_run_without_an_executor_says_what_it_waits_for(directory: Path, database_dsn: str):
    program = Program(directory, ORDER + STARTS)
    program.environment["PENSTOCK_AT"] = database_dsn
    assert ended(program.start())[0] == 0
    assert re.search(r"ACTIVE +an App with order@1: none is connected\n", reported(program, "list"))
    assert "waits for an App with order@1: none is connected" in reported(program, "show", "o-1")


def test_an_approval_is_sent_to_the_programs_own_rest_port(directory: Path):
    program = Program(directory, SERVES_REST)
    running = program.start()
    assert running.stdout is not None
    url = running.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
    with httpx.Client(base_url=url, trust_env=False, timeout=COMMAND_MAX_S) as client:
        [run] = client.get("/v1/instances", params={"businessKey": "o-1"}).json()["items"]
        assert client.get("/console/").status_code == 200
        sent = client.post(f"/v1/instances/{run['id']}/messages", json={"name": "approved", "payload": "over REST"})
        assert sent.status_code < 300, sent.text
    code, said, errors = ended(running)
    assert (code, said) == (0, "42 over REST\nNone\n"), errors


def test_a_taken_port_ends_the_program_at_once(directory: Path):
    program = Program(directory, SERVES_REST)
    running = program.start()
    assert running.stdout is not None
    port = running.stdout.readline().strip().rpartition(":")[2]
    second = Program(directory, SERVES_REST.replace("rest_port=0", f"rest_port={port}"), "second.py").start()
    code, _, errors = ended(second)
    assert code == 1
    assert re.search(rf"ListenError: .*{port}", errors)
    running.terminate()
    ended(running)
