"""What README and the SDK's pages show is run: programs as programs, pieces in one event loop after each other."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from penstock.client import Client, ScheduleSpec, SyncClient
from penstock.client.builder import WorkflowBuilder
from penstock.testing.definitions import definition, end
from penstock.testing.postgres import PostgresServer
from penstock.worker import Worker
from tests.sdk.running_engine import REPOSITORY, RunningEngine, running_engine
from tests.shapes import assign

ORDER = {"orderId": "A-7", "amount": 25, "items": ["book"]}


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (REPOSITORY / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def engine(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with running_engine(postgres_server, tmp_path_factory.mktemp("engine")) as running:
        with SyncClient(running.url) as client:
            client.upload_definition(REPOSITORY / "examples" / "order-fulfilment.json")
        yield running


def at(engine: RunningEngine, source: str) -> str:
    """The source with the addresses of the test's engine in place of the usual ones."""
    return source.replace("http://127.0.0.1:8080", engine.url).replace("grpc://127.0.0.1:9090", engine.grpc_url)


def worker_blocks() -> list[Any]:
    """Every block that is a worker as a whole program."""
    found = [(page, source) for page in ("README.md", "docs/worker.md") for source in blocks(page)]
    programs = [(page, source) for page, source in found if "worker.main()" in source and "order.validate" in source]
    assert len(programs) >= 2
    return [pytest.param(source, id=f"{page}-{number}") for number, (page, source) in enumerate(programs)]


@pytest.mark.slow(reason="runs the programs of the pages")
@pytest.mark.parametrize("source", worker_blocks())
def test_a_worker_in_the_pages_works_and_ends_on_sigint(engine: RunningEngine, source: str, tmp_path: Path) -> None:
    program = tmp_path / "validate.py"
    program.write_text(at(engine, source))
    with SyncClient(engine.url) as client:
        started = client.start_instance("order-fulfilment", ORDER)
        command = [sys.executable, "-W", "error", str(program)]
        process = subprocess.Popen(command, env={"PYTHONPATH": str(REPOSITORY / "src")})
        try:
            moved: list[str] = []

            async def watch(watcher: Client) -> None:
                with anyio.fail_after(30):
                    while (now := await watcher.get_instance(started.id)).current_step_ids == ["validate-order"]:
                        await anyio.sleep(0.05)
                moved.extend(now.current_step_ids)
                assert now.variables["valid"] is True

            client.run(watch)
            assert moved == ["reserve-stock"]
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.slow(reason="starts an engine process")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_first_worker_of_the_guide_runs(engine: RunningEngine, backend: str) -> None:
    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(at(engine, blocks("docs/worker.md")[0]), "docs/worker.md", "exec", dont_inherit=True), names)
    worker: Worker = names["worker"]

    async def main() -> None:
        async with Client(engine.url) as client, worker:
            await client.upload_definition(WorkflowBuilder("pay").service_task("charge", "payment.charge").end())
            for amount, status in ((5, "COMPLETED"), (0, "FAILED")):
                started = await client.start_instance("pay", {"orderId": "7", "amount": amount})
                ended = await client.wait_until_ended(started.id, timeout_s=120)
                assert ended.status == status
                if amount:
                    assert ended.variables["paymentId"].startswith("p-")
                else:
                    assert ended.failure_reason == "nothing to charge: 0"

    anyio.run(main, backend=backend)


def test_the_options_of_a_connection_are_shown_as_they_are(engine: RunningEngine) -> None:
    (source,) = [source for source in blocks("docs/worker.md") if "GrpcTransport(" in source]
    names: dict[str, Any] = {}
    exec(compile(at(engine, source), "docs/worker.md", "exec", dont_inherit=True), names)

    async def main() -> None:
        async with names["client"] as client:
            assert await client.is_ready()

    anyio.run(main)


@pytest.mark.slow(reason="runs the programs of the pages")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("over", ["http://127.0.0.1:8080", "grpc://127.0.0.1:9090"])
def test_the_clients_page_runs_from_top_to_bottom(
    engine: RunningEngine, backend: str, over: str, capfd: pytest.CaptureFixture[str]
) -> None:
    first, *pieces = blocks("docs/client.md")
    pieces = [piece for piece in pieces if "engine.example" not in piece]  # of engines that are not here
    program = at(
        engine,
        first.replace("http://127.0.0.1:8080", over).replace(
            "anyio.run(main)", f"anyio.run(main, backend={backend!r})"
        ),
    )
    subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env={"PYTHONPATH": str(REPOSITORY / "src")}, check=True
    )
    assert "COMPLETED {'amount': 2500, 'approved': True}" in capfd.readouterr().out

    async def main() -> None:
        async with Client(at(engine, over)) as client:
            for piece in pieces:
                names: dict[str, Any] = {"client": client}
                code = compile(at(engine, piece), "docs/client.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
                if "SyncClient" in piece:
                    await anyio.to_thread.run_sync(exec, code, names)
                elif (coroutine := eval(code, names)) is not None:
                    await coroutine

    anyio.run(main, backend=backend)
    shown = capfd.readouterr().out
    assert "COMPLETED P-7" in shown
    assert "steps[0].jobType: " in shown


def test_programs_of_the_pages_of_schedules_and_starts_run(
    engine: RunningEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    with SyncClient(engine.url) as client:
        for id in ("report", "letter", "summary"):
            client.upload_definition(definition(assign("done", {"done": True}), end(), definition_id=id))
        in_code: dict[str, list[str]] = {}
        for page in ("docs/schedules.md", "docs/starts.md"):
            source, *in_code[page] = blocks(page)
            exec(compile(at(engine, source), page, "exec", dont_inherit=True), {})
        assert capfd.readouterr().out.splitlines() == [
            f"{place} COMPLETED {{'to': '{name}', 'done': True}}" for place, name in enumerate(("Ada", "Grace"))
        ]
        batch = client.get_batch(client.list_batches().items[0].id)
        assert (batch.state, batch.total, batch.completed) == ("DONE", 2, 2)
        assert batch.completion_id is not None
        assert client.wait_until_ended(batch.completion_id, timeout_s=120).variables["batch"]["completed"] == 2
        made = client.get_schedule("nightly")
        assert (made.definition_id, made.cron, made.time_zone) == ("report", ["0 2 * * *"], "Europe/Berlin")
    assert in_code["docs/starts.md"] == []
    (source,) = in_code["docs/schedules.md"]
    workflows: dict[str, Any] = {}
    exec(compile(source, "docs/schedules.md", "exec", dont_inherit=True), workflows)
    assert workflows["report"].schedule == ScheduleSpec(cron=["0 8 * * mon"])
    assert workflows["nightly"].schedule == ScheduleSpec(
        cron=["0 2 * * *"], time_zone="Europe/Berlin", overlap="BUFFER_ONE"
    )
    assert msgspec.json.decode(workflows["remind"].schedule_text())["variables"] == {"region": "eu"}
