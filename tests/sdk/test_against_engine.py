"""Client and worker against a real engine: what they say to each other, and what is left in its history."""

from __future__ import annotations

import importlib.util
import ssl
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trustme

from penstock.client import (
    Client,
    Instance,
    StartRequest,
)
from penstock.client.builder import WorkflowBuilder
from penstock.client.grpc import GrpcTransport
from penstock.worker import JobContext, Worker, WorkerObserver
from tests.sdk.loops import Run
from tests.sdk.running_engine import REPOSITORY, RunningEngine

TRIES_MAX = 10
ONE_TASK = WorkflowBuilder("one").service_task("work", "work", retries=2).end().document()
THREE_TASKS = (
    WorkflowBuilder("three").service_task("a", "a").service_task("b", "b").service_task("c", "c").end().document()
)


def module_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An example as a module, made anew for this test."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


async def run_to_the_end(client: Client, definition_id: str, variables: dict[str, Any]) -> Instance:
    started = await client.start_instance(definition_id, variables)
    return await client.wait_until_ended(started.id, timeout_s=120)


@pytest.mark.slow(reason="starts engine processes")
def test_the_example_worker_fulfils_the_example_order(
    run: Run, engine: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = module_of(REPOSITORY / "examples" / "order_worker.py", monkeypatch)
    monkeypatch.setattr(example.worker, "_engine", engine.url)
    steps = ["validate-order", "reserve-stock", "charge-payment", "ship-parcel", "notify-customer", "done"]

    async def main() -> None:
        async with Client(engine.url) as client:
            await client.upload_definition(REPOSITORY / "examples" / "order-fulfilment.json")
            orders = [{"orderId": f"A-{number}", "amount": number, "items": ["book"]} for number in range(20)]
            requests = [StartRequest(definition_id="order-fulfilment", variables=order) for order in orders]
            async with example.worker:
                for result in await client.start_instances(requests):
                    ended = await client.wait_until_ended(result.unwrap().id, timeout_s=120)
                    assert ended.status == "COMPLETED", ended.failure_reason
                    assert ended.variables["trackingNumber"] == f"PS-{ended.variables['orderId']}"
                    history = await client.get_history(ended.id)
                    assert [step.step_id for step in history] == steps
                    assert {step.status for step in history} == {"COMPLETED"}
                failed = await run_to_the_end(client, "order-fulfilment", {"orderId": "A-x", "amount": -1})
                assert (failed.status, failed.failure_reason) == (
                    "FAILED",
                    "order A-x has a negative amount: -1",
                )

    run(main)


@pytest.mark.slow(reason="starts engine processes")
def test_the_example_for_processors_counts_in_another_process(
    run: Run, engine: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "examples")  # for the other process as well
    example = module_of(REPOSITORY / "examples" / "cpu_worker.py", monkeypatch)
    monkeypatch.setattr(example.worker, "_engine", engine.url)

    async def main() -> None:
        async with Client(engine.url) as client:
            await client.upload_definition(
                WorkflowBuilder("primes").service_task("count", "primes.count").end().document()
            )
            async with example.worker:
                ended = await run_to_the_end(client, "primes", {"upTo": 100_000})
            assert (ended.status, ended.variables["primes"]) == ("COMPLETED", 9592)

    run(main)


@pytest.mark.slow(reason="starts engine processes")
@pytest.mark.parametrize("wire", ["rest", "grpc"])
@pytest.mark.parametrize("engines", [1, 2])
def test_a_cancel_reaches_the_running_handler_within_a_second(
    run: Run, engine: RunningEngine, other_engine: RunningEngine, wire: str, engines: int
) -> None:
    """Of a worker that is full, so that it polls no more, and also when another engine is told of the cancel."""
    teller = engine if engines == 1 else other_engine
    delays_s: list[float] = []

    async def main() -> None:
        cancelled_at = 0.0
        begun, ended = anyio.Event(), anyio.Event()
        worker = Worker(engine.url if wire == "rest" else engine.grpc_url, concurrency=1)

        @worker.handler("work")
        async def work(context: JobContext) -> None:
            nonlocal ended
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                assert context.stop_reason == "cancelled"
                delays_s.append(anyio.current_time() - cancelled_at)
                ended.set()

        async with Client(teller.url) as client, worker:
            await client.upload_definition(ONE_TASK)
            while len(delays_s) < TRIES_MAX and sum(delay_s < 1 for delay_s in delays_s) < 2:
                begun, ended = anyio.Event(), anyio.Event()
                instance = await client.start_instance("one")
                await begun.wait()
                cancelled_at = anyio.current_time()
                await client.cancel_instance(instance.id)
                with anyio.fail_after(30):
                    await ended.wait()

    if engines == 2:
        other_engine.start()
    run(main)
    print(f"{wire}, {engines} engines: {[round(delay_s, 3) for delay_s in delays_s]} s")
    # engines look for each other once a second, and the machine may be busy with others: heartbeats alone took 5 to 8 s
    assert sum(delay_s < 1 for delay_s in delays_s) == 2


@pytest.mark.slow(reason="starts engine processes")
def test_the_example_web_application_does_its_step_of_the_order(
    engine: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", engine.url)
    example = module_of(REPOSITORY / "examples" / "web_app.py", monkeypatch)
    others = module_of(REPOSITORY / "examples" / "order_worker.py", monkeypatch).worker
    monkeypatch.setattr(others, "_engine", engine.url)
    del others._handlers["customer.notify"]

    async def main() -> None:
        async with Client(engine.url) as client, example.app.test_app() as app, others:
            await client.upload_definition(REPOSITORY / "examples" / "order-fulfilment.json")
            browser = app.test_client()
            first, again = [await browser.post("/orders", json={"orderId": "B-1", "amount": 3}) for _ in range(2)]
            assert first.status_code == again.status_code == 202
            placed = await first.get_json()
            assert placed == await again.get_json()
            await client.wait_until_ended(placed["id"], timeout_s=120)
            shown = await browser.get(f"/orders/{placed['id']}")
            assert await shown.get_json() == {"status": "COMPLETED", "steps": [], "notified": 1}
            assert (await browser.get("/orders/zz")).status_code == 404

    anyio.run(main)


@pytest.mark.slow(reason="waits for leases that end")
@pytest.mark.parametrize(
    ("loop", "over", "how"),
    [("asyncio", "rest", "kill"), ("trio", "rest", "stop"), ("trio", "grpc", "kill"), ("asyncio", "grpc", "stop")],
)
def test_a_restart_under_a_thousand_jobs_loses_no_completion(
    loop: str, over: str, how: str, engine: RunningEngine
) -> None:
    class Watcher(WorkerObserver):
        def __init__(self) -> None:
            self.away = anyio.Event()

        def on_engine(self, reachable: bool) -> None:
            if not reachable:
                self.away.set()

    async def main() -> None:
        running: set[str] = set()
        many_run, go_on = anyio.Event(), anyio.Event()
        watcher = Watcher()
        url = engine.url if over == "rest" else engine.grpc_url
        async with Client(url, timeout_s=60) as client:
            await client.upload_definition(THREE_TASKS)
            results = await client.start_instances([StartRequest(definition_id="three")] * 1000)
            instances = [result.unwrap().id for result in results]
            # Jobs in an answer that the crash cut off are leased to a worker that does not know: back after a lease.
            worker = Worker(client, concurrency=1100, lease_s=10, observer=watcher)

            @worker.handler("a")
            @worker.handler("c")
            async def quick(context: JobContext) -> dict[str, Any]:
                return {context.step_id: context.id}

            @worker.handler("b")
            async def held(context: JobContext) -> dict[str, Any]:
                running.add(context.id)
                if len(running) > 700:  # the other 300 are being started, completed and handed out
                    many_run.set()
                await go_on.wait()
                return {context.step_id: context.id}

            async with worker:
                await many_run.wait()
                await anyio.to_thread.run_sync(engine.kill if how == "kill" else engine.stop)
                await watcher.away.wait()
                go_on.set()  # 700 results have nowhere to go
                while worker.statistics().unreported < 700:
                    await anyio.lowlevel.checkpoint()
                await anyio.to_thread.run_sync(engine.start)
                for instance in instances:
                    ended = await client.wait_until_ended(instance, timeout_s=120)
                    assert ended.status == "COMPLETED"
                    history = await client.get_history(instance)
                    assert [step.step_id for step in history] == ["a", "b", "c", "end"]
                    # What is merged is what the execution that history shows has returned.
                    assert ended.variables == {step.step_id: step.id for step in history[:-1]}
            statistics = worker.statistics()
            assert (statistics.completed, statistics.failed) == (3000, 0)

    async def bounded() -> None:
        with anyio.fail_after(150):  # about 20 on a machine of its own
            await main()

    anyio.run(bounded, backend=loop)


@pytest.mark.slow(reason="starts engine processes")
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_client_and_worker_over_grpc_with_tls(loop: str, database_dsn: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
    key.write_bytes(certificate.private_key_pem.bytes())
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    settings = {"WE_GRPC_TLS_CERT_PATH": str(chain), "WE_GRPC_TLS_KEY_PATH": str(key)}
    engine = RunningEngine(database_dsn, tmp_path / "engine.log", **settings)

    async def main() -> None:
        url = engine.grpc_url.replace("grpc://", "grpcs://")
        async with Client(GrpcTransport(url, ssl_context=trusting)) as client:
            await client.upload_definition(ONE_TASK)
            worker = Worker(client)

            @worker.handler("work")
            async def work(context: JobContext) -> dict[str, Any]:
                return {"text": "x" * 200_000}

            async with worker:
                ended = [await run_to_the_end(client, "one", {"n": number}) for number in range(5)]
            assert {(each.status, len(each.variables["text"])) for each in ended} == {("COMPLETED", 200_000)}

    try:
        engine.start()
        anyio.run(main, backend=loop)
    finally:
        engine.close()
