"""gRPC at the process's end and with several processes: real stubs, real signals."""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest

from penstock.testing.definitions import linear
from tests.rpc.conftest import Google, certificate, google
from tests.runtime.background import Threads
from tests.runtime.conftest import StartEngine
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

__all__ = ["certificate", "google"]  # pytest finds the fixtures here
TIMEOUT_S = 30.0


@pytest.mark.slow(reason="starts engine processes")
def test_health_reflection_and_metrics_are_served(start_engine: StartEngine, google: Google) -> None:
    engine = start_engine().wait_ready()
    with grpc.insecure_channel(f"127.0.0.1:{engine.grpc_port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        for service in (b"", b"workflow.v1.WorkflowEngine", b"penstock.v1.Worker"):
            request = b"\x0a" + bytes([len(service)]) + service if service else b""
            assert check(request, timeout=TIMEOUT_S) == b"\x08\x01"
        reflect = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        (answer,) = list(reflect(iter([b"\x3a\x01*"]), timeout=TIMEOUT_S))
        assert b"workflow.v1.WorkflowEngine" in answer
        assert b"penstock.v1.Worker" in answer
        with pytest.raises(grpc.RpcError):
            google.workflow_grpc.WorkflowEngineStub(channel).GetInstance(
                google.workflow.GetInstanceRequest(id="1f"), timeout=TIMEOUT_S
            )
    assert engine.metric("grpc_requests_duration_seconds_count") == 5
    assert engine.stop() == 0


@pytest.mark.slow(reason="starts engine processes")
def test_two_processes_share_the_grpc_port(start_engine: StartEngine, google: Google) -> None:
    engine = start_engine("--processes", "2").wait_ready()
    for _ in range(8):
        with grpc.insecure_channel(f"127.0.0.1:{engine.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = google.workflow_grpc.WorkflowEngineStub(channel)
            assert stub.ListDefinitions(google.workflow.ListDefinitionsRequest(), timeout=TIMEOUT_S).total == 0
    assert engine.stop() == 0


@pytest.mark.slow(reason="starts engine processes")
def test_tls_from_the_settings(start_engine: StartEngine, google: Google, certificate: tuple[Path, Path]) -> None:
    engine = start_engine(grpc_tls_cert_path=certificate[0], grpc_tls_key_path=certificate[1]).wait_ready()
    credentials = grpc.ssl_channel_credentials(certificate[0].read_bytes())
    with grpc.secure_channel(f"localhost:{engine.grpc_port}", credentials) as channel:
        stub = google.workflow_grpc.WorkflowEngineStub(channel)
        assert stub.ListDefinitions(google.workflow.ListDefinitionsRequest(), timeout=TIMEOUT_S).total == 0
    assert engine.stop() == 0


@pytest.mark.slow(reason="starts engine processes")
def test_unusable_tls_files_are_a_start_up_error(start_engine: StartEngine) -> None:
    engine = start_engine(grpc_tls_cert_path="/nowhere.pem", grpc_tls_key_path="/nowhere.key")
    assert engine.process.wait(120) == 1
    assert any("certificate /nowhere.pem" in str(line.get("error")) for line in engine.lines)


@pytest.mark.slow(reason="starts engine processes")
def test_a_taken_grpc_port_is_named_and_nothing_is_left(start_engine: StartEngine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        engine = start_engine("--grpc-port", str(port))
        assert engine.process.wait(120) == 1
        assert any(f"gRPC can't listen on 127.0.0.1:{port}" in str(line.get("error")) for line in engine.lines)


class Callers(Threads):
    """Threads that start, poll and complete over gRPC until told to stop; every status that is not OK is kept."""

    def __init__(self, google: Google, port: int, count: int) -> None:
        super().__init__()
        self._google = google
        self._port = port
        self.outcomes: list[tuple[grpc.StatusCode, str]] = []
        self.completed = 0
        self.accepted: list[str] = []
        for number in range(count):
            self.add(self._run, f"w{number}")

    def _run(self, worker: str) -> None:
        m = self._google.workflow
        with grpc.insecure_channel(f"127.0.0.1:{self._port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = self._google.workflow_grpc.WorkflowEngineStub(channel)
            while not self.stop.is_set():
                try:
                    started = stub.StartInstance(m.StartInstanceRequest(definition_id="linear"), timeout=TIMEOUT_S)
                    self.accepted.append(started.instance.id)
                    poll = m.PollJobsRequest(worker_id=worker, job_types=["work"], max_jobs=3)
                    for job in stub.PollJobs(poll, timeout=TIMEOUT_S).jobs:
                        stub.CompleteJob(m.CompleteJobRequest(job_id=job.id, worker_id=worker), timeout=TIMEOUT_S)
                        self.completed += 1
                except grpc.RpcError as error:
                    self.outcomes.append((error.code(), error.details() or ""))
                    self.stop.wait(0.01)


@pytest.mark.slow(reason="stops an engine process under load")
def test_sigterm_under_load_breaks_no_call(start_engine: StartEngine, google: Google, database_dsn: str) -> None:
    """A call is answered, or could not be made any more: UNAVAILABLE. What was accepted is in the database."""
    engine = start_engine().wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(2))[0] == 201
    with Callers(google, engine.grpc_port, 8) as callers:
        wait_until(lambda: callers.completed > 200)
        assert callers.outcomes == []
        assert engine.stop() == 0
    assert {code for code, _ in callers.outcomes} <= {grpc.StatusCode.UNAVAILABLE}
    assert [text for _, text in callers.outcomes if "failed to connect" not in text.lower()] == []
    with psycopg.connect(database_dsn) as connection:
        rows = connection.execute("SELECT id FROM instance").fetchall()
    assert set(callers.accepted) == {f"{row[0]:x}" for row in rows}


class Stream:
    """A Work stream of grpcio that completes whatever comes, until it ends."""

    def __init__(self, google: Google, port: int) -> None:
        self._p = google.penstock
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._stub = google.penstock_grpc.WorkerStub(self._channel)
        self.sent: set[str] = set()
        self.settled: dict[str, int] = {}
        self.code: grpc.StatusCode | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Stream:
        self._outgoing.put(self._p.WorkRequest(worker_id="s", credits=[self._p.Credit(job_type="work", jobs=20)]))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._outgoing.put(None)
        self._thread.join(120)
        self._channel.close()

    def wait_ended(self) -> None:
        self._thread.join(120)

    def _requests(self) -> Iterator[Any]:
        while (request := self._outgoing.get()) is not None:
            yield request

    def _run(self) -> None:
        p = self._p
        answers = self._stub.Work(self._requests())
        with contextlib.suppress(grpc.RpcError):
            for answer in answers:
                self.settled.update((outcome.job_id, outcome.outcome) for outcome in answer.outcomes)
                done = [p.Completion(job_id=job.id, attempt=job.attempt) for job in answer.jobs]
                if done:
                    self.sent |= {item.job_id for item in done}
                    more = [p.Credit(job_type="work", jobs=len(done))]
                    self._outgoing.put(p.WorkRequest(completions=done, credits=more))
        self.code = answers.code()


@pytest.mark.slow(reason="stops an engine process under load")
def test_sigterm_lets_a_work_stream_hand_in_its_results(
    start_engine: StartEngine, google: Google, database_dsn: str
) -> None:
    engine = start_engine().wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(3))[0] == 201
    with Stream(google, engine.grpc_port) as stream:
        _start_many(engine, 2_000)
        wait_until(lambda: len(stream.settled) > 300)
        assert engine.stop() == 0
        stream.wait_ended()
    assert stream.code is grpc.StatusCode.UNAVAILABLE
    assert stream.sent == set(stream.settled)
    assert set(stream.settled.values()) == {1}
    with psycopg.connect(database_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM token WHERE state = 1").fetchall() == [(0,)]


def _start_many(engine: EngineProcess, count: int) -> None:
    items = [{"definitionId": "linear"}] * 500
    for _ in range(count // 500):
        assert engine.call("POST", "/v1/instances/batch", {"items": items})[0] == 200


@pytest.mark.slow(reason="stops an engine process under load")
def test_a_killed_stream_client_loses_its_jobs_at_once(
    start_engine: StartEngine, google: Google, database_dsn: str
) -> None:
    """SIGKILL of the worker: the connection breaks, and another worker has the jobs long before the lease ends."""
    engine = start_engine().wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(1))[0] == 201
    program = f"""
import sys; sys.path[:0] = {[str(Path(str(google.penstock.__file__)).parent)]!r}
import grpc, queue, penstock_v1_worker_pb2 as p, penstock_v1_worker_pb2_grpc as g
q = queue.SimpleQueue()
q.put(p.WorkRequest(worker_id="dies", lease_seconds=3600, credits=[p.Credit(job_type="work", jobs=5)]))
for answer in g.WorkerStub(grpc.insecure_channel("127.0.0.1:{engine.grpc_port}")).Work(iter(q.get, None)):
    print(len(answer.jobs), flush=True)
"""
    items = [{"definitionId": "linear"}] * 5
    assert engine.call("POST", "/v1/instances/batch", {"items": items})[0] == 200
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        got = 0
        while got < 5:
            got += int(worker.stdout.readline())
        worker.send_signal(signal.SIGKILL)
    poll = {"workerId": "next", "jobTypes": ["work"], "maxJobs": 5, "waitSeconds": 5}
    found: list[Any] = []
    while len(found) < 5:
        jobs = engine.call("POST", "/v1/jobs/poll", poll)[1]["jobs"]
        assert jobs
        found += jobs
    assert {job["attempt"] for job in found} == {2}
    assert engine.stop() == 0
