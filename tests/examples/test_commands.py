"""The commands of examples/README.md, each as a process of its own against `penstock serve`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from penstock.client import SyncClient
from penstock.http import reserved_ports
from penstock.testing.postgres import PostgresServer
from tests.runtime.waiting import wait_until
from tests.sdk.running_engine import REPOSITORY, RunningEngine, running_engine

EXAMPLES = REPOSITORY / "examples"
pytestmark = pytest.mark.slow(reason="the examples as commands")

SAID = {
    "order_worker": ["A-1 COMPLETED PS-A-1", "A-2 COMPLETED PS-A-2", "A-3 FAILED order A-3 has a negative amount: -1"],
    "approval_worker": ["20 COMPLETED P-", "waits at approval", "200 COMPLETED P-"],
    "durable_order": ["A-1 shipped ship-", "A-2 undone: refused by ann - reserve, ask_for_approval, refund, release"],
    "durable_agent": ["It is done: Lisbon Palace, 2 nights - after 2:00:00 and ask_model, call_tool, ask_model"],
    "nightly_report": ["next: ", "sales of "],
    "crawler": ["http://127.0.0.1:", "http://localhost:", "10 pages of 2 hosts, 5 a second of each, in "],
    "cpu_worker": ["up to 1000 there are 168 primes", "up to 1000000 there are 78498 primes"],
    "loan_worker": [
        "waits for a credit officer, score 742",
        "application COMPLETED approved: True",
        "disbursement WAITING at cooling-off - paid out in a day",
    ],
}


@pytest.fixture(scope="module")
def engine(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with running_engine(postgres_server, tmp_path_factory.mktemp("engine")) as running:
        yield running


def environment(engine: RunningEngine) -> dict[str, str]:
    return {**os.environ, "PENSTOCK_URL": engine.url, "PYTHONPATH": str(REPOSITORY / "src")}


@pytest.mark.parametrize("name", SAID)
def test_an_example_is_tried_by_one_command(engine: RunningEngine, name: str) -> None:
    command = [sys.executable, "-W", "error", f"{name}.py", "--try"]
    run = subprocess.run(command, cwd=EXAMPLES, env=environment(engine), capture_output=True, text=True, timeout=90)
    assert run.returncode == 0, run.stdout + run.stderr
    lines = run.stdout.splitlines()
    rest = iter(lines)
    assert all(any(line.startswith(said) for line in rest) for said in SAID[name]), run.stdout


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_a_worker_works_until_it_is_stopped(engine: RunningEngine) -> None:
    with reserved_ports(1) as (port,):
        works_until_it_is_stopped(engine, port)


def works_until_it_is_stopped(engine: RunningEngine, port: int) -> None:
    servers = [[sys.executable, "-m", "hypercorn", "--bind", f"127.0.0.1:{port}", "web_app:app"]]
    servers += [[sys.executable, "order_worker.py"]]
    processes = [subprocess.Popen(command, cwd=EXAMPLES, env=environment(engine)) for command in servers]
    try:
        wait_until(lambda: listens(port))
        order = {"orderId": "W-1", "amount": 3, "items": ["pen"]}
        placed = httpx.post(f"http://127.0.0.1:{port}/orders", json=order, trust_env=False).json()
        with SyncClient(engine.url) as client:
            assert client.wait_until_ended(placed["id"], timeout_s=120).variables["trackingNumber"] == "PS-W-1"
        shown = httpx.get(f"http://127.0.0.1:{port}/orders/{placed['id']}", trust_env=False).json()
        assert shown["status"] == "COMPLETED"
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(120) for process in processes] == [0, 0]


def test_the_readme_lists_every_example_with_command_and_test() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    modules = {path.name for path in EXAMPLES.glob("*.py")} - {"conftest.py"}
    commands = set(
        re.findall(
            r"(?:python |(?:hypercorn|uvicorn) (?:[^`]* )?|flask --app |calls `)(\w+)(?:\.py|:ap[pi]| run|\.place)",
            readme,
        )
    )
    assert {f"{name}.py" for name in commands} == modules
    assert set(re.findall(r"[\w-]+\.json", readme)) == {path.name for path in EXAMPLES.glob("*.json")}
    tests = {f"tests/{path.name}" for path in (EXAMPLES / "tests").glob("test_*.py")}
    assert set(re.findall(r"tests/\w+\.py", readme)) == tests
