"""What the transport and the codecs cost: ``python -m tests.rpc.measure`` (needs go; a minute). No test.

CPU of the server process per call is the figure to compare; the load generator shares its cores.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.rpc import messages as m
from penstock.rpc import worker_messages as w
from penstock.rpc._generated.penstock import v1 as generated_penstock
from penstock.rpc._generated.workflow import v1 as generated_workflow
from penstock.rpc.codec import decode_message, encode_message
from penstock.rpc.struct_codec import struct_from_json, struct_to_json
from tests.rpc import go_client

ROOT = Path(__file__).resolve().parents[2]
SOME = b'{"orderId":"o-12345","amount":12.5,"n":3}'
NOW = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def microseconds(work: Callable[[], object] | None) -> str:
    """The best of seven rounds."""
    if work is None:
        return "–"
    best = float("inf")
    for _ in range(7):
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < 0.02:
            work()
            count += 1
        best = min(best, (time.perf_counter() - began) / count)
    return f"{best * 1e6:.2f}"


def codecs() -> None:
    times = {"lock_expires_at": NOW, "created_at": NOW}
    ids = {"id": "18f2a-3-7", "job_type": "charge", "instance_id": "18f2a", "step_id": "charge-card"}
    numbers = {"attempt": 1, "retries_remaining": 3}
    job: dict[str, Any] = {**ids, **numbers, "variables": SOME, **times}
    polled: dict[str, Any] = {
        **ids,
        **numbers,
        "step_execution_id": "18f2a-3-7",
        "variables": SOME,
        "lock_expires_at": NOW,
    }
    completion: dict[str, Any] = {"job_id": "18f2a-3-7", "attempt": 2, "variables": SOME}
    event = {
        "schema_version": 1,
        "dedup_id": "77",
        "job_id": "18f2a-3-7",
        "job_payload": SOME,
        "created_at": NOW,
        **numbers,
    }
    theirs, theirs_old = generated_penstock, generated_workflow
    print("| µs | construct | encode | decode | betterproto2: construct | encode | decode |")
    print("|---|---|---|---|---|---|---|")
    row(
        "Completion",
        w.Completion(**completion),
        lambda: w.Completion(**completion),
        lambda: theirs.Completion(**completion),
    )
    row("Job", w.Job(**job), lambda: w.Job(**job), lambda: theirs.Job(**job))
    row("WorkResponse of 32 jobs", w.WorkResponse([w.Job(**job)] * 32))
    row("WorkRequest of 32 completions", w.WorkRequest(completions=[w.Completion(**completion)] * 32))
    row("CompleteJobRequest (Struct of 3)", m.CompleteJobRequest("18f2a-3-7", "w1", SOME))
    row("PollJobsResponse of 10 jobs (Struct of 3)", m.PollJobsResponse([m.Job(**polled)] * 10))
    fail = {"job_id": "18f2a-3-7", "worker_id": "w1", "error_message": "no such card"}
    row(
        "FailJobRequest",
        m.FailJobRequest(**fail),
        lambda: m.FailJobRequest(**fail),
        lambda: theirs_old.FailJobRequest(**fail),
    )
    row("JobDispatchEvent", m.JobDispatchEvent(**event))
    value = {
        "id": "o-12345",
        "amount": 12.5,
        "n": 3,
        "ok": True,
        "customer": {"name": "Ann", "vip": False},
        "note": "x" * 40,
    }
    ten = json.dumps({**value, "items": [1, 2, 3], "z": None, "tag": "alpha", "rate": 0.07}).encode()
    struct = struct_from_json(ten)
    to_wire, to_text = microseconds(lambda: struct_from_json(ten)), microseconds(lambda: struct_to_json(struct))
    print(f"Struct of ten keys: from JSON text {to_wire} µs, to JSON text {to_text} µs")


def row(
    name: str, message: Any, make: Callable[[], object] | None = None, make_theirs: Callable[[], object] | None = None
) -> None:
    kind = type(message)
    generated = generated_workflow if kind.__module__ == m.__name__ else generated_penstock
    data = encode_message(message)
    other_kind = getattr(generated, kind.__name__)
    other = other_kind.parse(data)
    figures = [
        make, lambda: encode_message(message), lambda: decode_message(data, kind),
        make_theirs, lambda: bytes(other), lambda: other_kind.parse(data),
    ]  # fmt: skip
    print(f"| {name} | " + " | ".join(map(microseconds, figures)) + " |")


def transport(client: Path, *load: str) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.rpc.server_process"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT) as server:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        done = subprocess.run(
            [str(client), load[0], f"127.0.0.1:{port}", *load[1:]], stdout=subprocess.PIPE, check=True
        )
        server.send_signal(signal.SIGTERM)
        used = json.loads(server.stdout.read().splitlines()[-1])
    seen = json.loads(done.stdout)
    count = seen.get("jobs", used["calls"])
    print(" ".join(load), "|", f"{seen['perSecond']:.0f}/s, server CPU {used['cpu_s'] / count * 1e6:.0f} µs each", seen)


if __name__ == "__main__":
    codecs()
    with tempfile.TemporaryDirectory() as directory:
        program = go_client.build(Path(directory) / "client")
        transport(program, "load", "-c", "1", "-conns", "1", "-d", "4s")
        transport(program, "load", "-c", "32", "-conns", "4", "-d", "4s")
        transport(program, "stream", "-c", "4", "-batch", "32", "-d", "4s")
