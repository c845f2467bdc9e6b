"""An `App` where programs have it: in an ASGI server's lifespan, behind a fork as gunicorn makes it, in pytest."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.durable.programs import Program, ended, own_directory, until
from tests.durable.test_app import ORDER
from tests.postgres import REPOSITORY

BOUND_S = 50.0
pytestmark = pytest.mark.slow(reason="web servers in processes of their own")


@pytest.fixture
def directory() -> Generator[Path]:
    yield from own_directory()


ASGI = (
    ORDER
    + """
import asyncio, signal, socket
from hypercorn.asyncio import serve
from hypercorn.config import Config

async def api(scope, take, give):
    if scope["type"] == "lifespan":  # what FastAPI makes of its own lifespan
        await take()
        with app.in_thread() as api.shop:
            await give({"type": "lifespan.startup.complete"})
            await take()
        await give({"type": "lifespan.shutdown.complete"})
        return

    def endpoint() -> str:
        run = api.shop.start(order, 4, id=scope["path"].strip("/"))
        run.send("approved", "over HTTP", dedup="1")
        return run.result(40)

    said = await asyncio.to_thread(endpoint)
    await give({"type": "http.response.start", "status": 200, "headers": []})
    await give({"type": "http.response.body", "body": said.encode()})

async def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.startup_timeout = config.shutdown_timeout = 50
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(listener.getsockname()[1], flush=True)
    await serve(api, config, shutdown_trigger=stopped.wait)

asyncio.run(main())
print("ended")
"""
)


def test_an_asgi_application_has_it_in_its_lifespan(directory: Path):
    program = Program(directory, ASGI)
    server = program.start()
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}"
    with httpx.Client(trust_env=False, timeout=BOUND_S) as client:
        assert [client.get(f"{url}/o-{n % 2}").text for n in range(4)] == ["8 over HTTP"] * 4
    assert program.rows("SELECT business_key FROM instance ORDER BY 1") == [("o-0",), ("o-1",)]
    server.send_signal(signal.SIGTERM)
    code, said, errors = ended(server)
    assert (code, said) == (0, "ended\n"), errors


PREFORK = (
    ORDER
    + """
import socket

def work(listener) -> None:
    with app.in_thread() as shop:
        while True:
            connection, _ = listener.accept()
            with connection:
                run = shop.start(order, 4, id=connection.recv(100).decode())
                run.send("approved", "by a worker", dedup="1")
                connection.sendall(f"{os.getpid()} {run.result(40)}".encode())

def fork(listener) -> None:
    if not os.fork():
        work(listener)

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
for _ in range(2):
    fork(listener)
while True:
    pid, _ = os.wait()
    with (here / "reaped").open("a") as file:
        file.write(f"{pid}\\n")
    fork(listener)
"""
)


def asked(port: int, id: str) -> tuple[int, str]:
    """Which worker answers, and what."""
    with socket.create_connection(("127.0.0.1", port), timeout=BOUND_S) as connection:
        connection.sendall(id.encode())
        pid, _, said = connection.recv(1_000).decode().partition(" ")
    return int(pid), said


def test_workers_after_a_fork_share_the_runs(directory: Path):
    program = Program(directory, PREFORK)
    reaped = directory / "reaped"
    reaped.touch()
    master = program.start()
    try:
        assert master.stdout is not None
        port = int(master.stdout.readline())
        first, said = asked(port, "o-1")
        assert said == "8 by a worker"
        os.kill(first, signal.SIGKILL)
        # a connection that comes before its end is its, and reset
        until(lambda: reaped.read_text().split() == [str(first)], master)
        second, said = asked(port, "o-1")
        assert said == "8 by a worker", "the same run, from another worker"
        assert second != first
        assert asked(port, "o-2")[1] == "8 by a worker"
        assert program.rows("SELECT count(*)::int FROM instance") == [(2,)]
        assert (directory / "paid").read_text().count("\n") == 2
        assert reaped.read_text().split() == [str(first)], "no other worker has ended"
    finally:
        os.killpg(master.pid, signal.SIGKILL)  # workers wait for connections
        ended(master)


SHOP = """
from penstock.durable import receive, step, workflow

@step
async def pay(n: int) -> int:
    return n * 2

@workflow
async def order(n: int) -> str:
    return f"{await pay(n)} {await receive('approved', str)}"
"""
TESTS = """
import shop

from penstock.durable import App
from penstock.testing import Message, run_workflow


def test_in_memory():
    assert run_workflow(shop.order, 4, messages=[Message("approved", "now")]).result() == "8 now"


def test_on_a_database(penstock_dsn):
    with App(shop.order, at=penstock_dsn).in_thread() as client:
        run = client.start(shop.order, 4, id="o-1")
        run.send("approved", "in pytest")
        assert run.result(50) == "8 in pytest"


def test_on_another_database(penstock_dsn):
    with App(shop.order, at=penstock_dsn).in_thread() as client:
        assert client.find(shop.order) == []
"""


def test_pytest_has_it_in_memory_and_on_a_database(directory: Path):
    (directory / "shop.py").write_text(SHOP)
    program = Program(directory, TESTS, "test_shop.py")
    program.environment |= {"PYTHONPATH": f"{REPOSITORY / 'src'}:{directory}"}
    (directory / "run.py").write_text("import sys, pytest\nsys.exit(pytest.main(['-q', '-p', 'no:cacheprovider']))\n")
    program.name = "run.py"
    code, said, errors = ended(program.start())
    assert code == 0, said + errors
    assert "3 passed" in said
