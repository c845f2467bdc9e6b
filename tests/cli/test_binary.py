"""The standalone binary: built once, then run where there is nothing, not even a PATH."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import trio

from penstock import __version__
from penstock.cli.demo.orders import order_worker
from penstock.cli.examples import example
from penstock.client import Client
from penstock.http import reserved_ports
from tests.house.sources import TOP

pytestmark = [pytest.mark.slow(reason="builds the executable file"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def binary(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("binary")
    subprocess.run(
        [sys.executable, TOP / "tools" / "binary.py", "--dist", directory],
        check=True,
        capture_output=True,
        env={**os.environ, "PYINSTALLER_CONFIG_DIR": str(directory / "cache")},
    )
    return directory / "penstock"


def test_it_needs_no_python_and_no_environment(binary):
    run = subprocess.run([binary, "version"], capture_output=True, text=True, env={})
    assert (run.returncode, run.stdout, run.stderr) == (0, f"penstock {__version__}\n", "")


async def test_it_runs_a_workflow_against_a_postgresql_and_stops(binary, empty_database_dsn, tmp_path):
    with reserved_ports(3) as ports:
        await runs_a_workflow(binary, empty_database_dsn, tmp_path, *ports)


async def runs_a_workflow(binary, dsn, tmp_path, rest, grpc, metrics):
    ports = ["--rest-port", str(rest), "--grpc-port", str(grpc), "--metrics-port", str(metrics), "--bind", "127.0.0.1"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = await trio.lowlevel.open_process(
            [binary, "serve", *ports], stdout=out, stderr=out, env={"WE_POSTGRES_DSN": dsn}
        )
    done: Counter[str] = Counter()
    try:
        url = f"http://127.0.0.1:{rest}"
        async with Client(url) as client:
            await client.wait_until_ready(timeout_s=120)
            definition = await client.upload_definition(example("order-fulfilment.json"))
            variables = {"orderId": 1, "quantity": 2, "price": 30}
            instance = await client.start_instance(definition.id, variables)
            async with order_worker(url, lambda step: done.update([step])):
                ended = await client.wait_until_ended(instance.id, timeout_s=120)
        assert (ended.status, ended.variables["paid"], done.total()) == ("COMPLETED", 60, 5)
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(60):
            assert await process.wait() == 0
    except BaseException:
        process.kill()
        print(log.read_text())
        raise
