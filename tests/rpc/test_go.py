"""grpc-go as the client: generated stubs, health, both reflections, the Work stream, and SIGTERM under its load."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock.rpc.health import Health
from penstock.rpc.methods import service_names
from penstock.rpc.reflection import Reflection
from tests.rpc.conftest import ROOT, running
from tests.rpc.services import Engine

pytestmark = [pytest.mark.go, pytest.mark.slow(reason="compiles programs in Go")]


async def output_of(*command: str) -> dict[str, Any]:
    done = await trio.run_process(list(command), capture_stdout=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


async def test_a_go_client_finds_all_as_the_contract_says(go_client: Path) -> None:
    names = service_names(Engine().__mapping__())
    health = Health(names)
    health.set_serving(True)
    with trio.fail_after(60):
        async with running(more=[health, Reflection(names | {"grpc.health.v1.Health"})]) as run:
            while not run.engine.cancelled:  # again when its deadline passed before the call had left
                seen = await output_of(str(go_client), "scenario", f"127.0.0.1:{run.port}")
                await run.until(lambda now: now.calls_running == 0)
            assert run.engine.cancelled == 1
            assert run.server.statistics().counts.floods == run.server.statistics().counts.broken == 0
    listed = [
        "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
        "penstock.v1.Worker", "workflow.v1.WorkflowEngine",
    ]  # fmt: skip
    assert seen == {
        "variables": {"n": 3, "x": 2.5, "list": [None, True, "é"]}, "businessKey": "k", "jobs": 2,
        "leaseLost": "Aborted", "unimplemented": "Unimplemented", "deadline": "DeadlineExceeded", "health": "SERVING",
        "services": listed, "servicesAlpha": listed, "work": 10_000, "pingPong": 2_000,
    }  # fmt: skip


async def test_sigterm_under_load_breaks_no_call_and_exits_0(go_client: Path) -> None:
    """Callers on persistent connections see answers, then refused connections; nothing in between."""
    with trio.fail_after(60):
        for _ in range(3):
            seen = await load_until_sigterm(go_client)
            assert seen["ok"] > 100
            assert set(seen["failures"]) == {"refused connection"}, seen["failures"]


async def load_until_sigterm(go_client: Path) -> dict[str, Any]:
    """What forty callers saw of a server that is told to end while they call."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    seen: dict[str, Any] = {}
    async with trio.open_nursery() as nursery:
        command = [sys.executable, "-m", "tests.rpc.server_process"]
        start = partial(trio.run_process, command, stdout=subprocess.PIPE, env=environment, cwd=ROOT)
        server: trio.Process = await nursery.start(start)  # raises unless it exits with 0
        lines = lines_of(server)
        port = (await anext(lines))["port"]

        async def call_on() -> None:
            load = ["-c", "40", "-conns", "10", "-d", "50s", "-job", "2 ms", "-until-refused"]
            seen.update(await output_of(str(go_client), "load", f"127.0.0.1:{port}", *load))

        nursery.start_soon(call_on)
        assert await anext(lines) == "busy"
        server.send_signal(signal.SIGTERM)
    await lines.aclose()
    return seen


async def lines_of(process: trio.Process) -> AsyncGenerator[Any]:
    """Its output, a JSON text on each line."""
    assert process.stdout is not None
    text = b""
    async for part in process.stdout:
        text += part
        while b"\n" in text:
            line, _, text = text.partition(b"\n")
            yield json.loads(line)
