"""Messages of the wire in two ways: this package's msgspec structs with its own protobuf codec, and betterproto2's
classes with its Rust codec. Encode, decode, JSON both ways, memory; 1, 32 and 128 jobs.

    PYTHONPATH=src python -m benchmarks.wire_codecs

betterproto2, its compiler and protoc go into an environment of their own (a temporary one; pip has to work), and both
are measured there, in one process, in turn. 0.4.0 is the newest betterproto2 that the Rust codec takes messages of
(0.5.1 and 0.10.0: "Given object is not a valid betterproto message").
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
import venv
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.units import measure_units  # needs nothing, as that environment has nothing
from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import decode_message, encode_message

try:
    rust: Any = importlib.import_module("betterproto2_rust_codec")
except ImportError:
    rust = None

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("betterproto2==0.4.0", "betterproto2-compiler==0.4.0", "betterproto2-rust-codec==0.1.3")
TOOLS = ("grpcio-tools==1.85.1", "grpclib")
FILES = ("penstock/v1/worker.proto", "workflow/v1/engine.proto")
COUNTS = (1, 32, 128)
ROUNDS, ROUND_S = 7, 0.03
NOW = datetime(2031, 5, 4, 12, 30, 15, 678_000, tzinfo=UTC)
VARIABLES = b'{"orderId":"o-12345","amount":12.5,"n":3}'
KEPT: Any = msgspec.Raw(VARIABLES)
"""As the engine holds them."""
JOB: dict[str, Any] = {
    "id": "18f2a-3-7", "job_type": "charge", "instance_id": "18f2a", "step_id": "charge-card", "attempt": 1,
    "retries_remaining": 3, "lock_expires_at": NOW, "idempotency_key": "18f2a-3-7",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # pyright: ignore[reportOptionalMemberAccess] - it is there
    parser.add_argument("--measure", metavar="DIRECTORY", help="in the environment: the generated classes are here")
    given = parser.parse_args()
    if given.measure:
        sys.path.insert(0, given.measure)
        measure()
        return
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        venv.create(top / "env", with_pip=True)
        python = top / "env" / "bin" / "python"
        packages = (*PEERS, *TOOLS, f"msgspec=={version('msgspec')}")
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        target = top / "generated" / "peer"
        target.mkdir(parents=True)
        path = os.pathsep.join((str(python.parent), os.environ.get("PATH", "")))
        command = [str(python), "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--python_betterproto2_out={target}"]
        subprocess.run(
            [*command, *FILES], check=True, env={**os.environ, "PATH": path}, stderr=subprocess.DEVNULL, cwd=top
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        command = [str(python), "-m", "benchmarks.wire_codecs", "--measure", str(target.parent)]
        subprocess.run(command, check=True, env=environment, cwd=ROOT)


def measure() -> None:
    """The table. Ours first, the peer's second."""
    print(f"calibration: {measure_units()}")
    print(
        f"Python {sys.version.split()[0]}, msgspec {version('msgspec')}, {', '.join(PEERS)}; µs, the best of {ROUNDS}"
    )
    print("| | jobs | encode | decode | to JSON | from JSON | bytes held per job |")
    print("|---|---|---|---|---|---|---|")
    for count in COUNTS:
        plain_jobs(count)
    for count in COUNTS:
        struct_jobs(count)


def plain_jobs(count: int) -> None:
    """A message of the Work stream: variables are bytes."""
    peer = importlib.import_module("peer.penstock.v1")
    job = {**JOB, "variables": VARIABLES, "created_at": NOW}
    kept: Any = {**job, "variables": KEPT}
    ours: Any = w.WorkResponse(jobs=[w.Job(**kept) for _ in range(count)])
    theirs = peer.WorkResponse(jobs=[peer.Job(**job) for _ in range(count)])
    wire = encode_message(ours)
    assert rust.serialize(theirs) == wire
    text, their_text = msgspec.json.encode(ours), theirs.to_json()
    read = msgspec.json.Decoder(w.WorkResponse).decode

    def parsed() -> Any:
        message = peer.WorkResponse()
        rust.deserialize(message, wire)
        return message

    row(
        "penstock.v1, ours", count, lambda: encode_message(ours), lambda: decode_message(wire, w.WorkResponse),
        lambda: msgspec.json.encode(ours), lambda: read(text),
    )  # fmt: skip
    row(
        "penstock.v1, betterproto2 and Rust", count, lambda: rust.serialize(theirs), parsed,
        theirs.to_json, lambda: peer.WorkResponse().from_json(their_text),
    )  # fmt: skip


def struct_jobs(count: int) -> None:
    """A poll's answer in the old service: variables are a Struct, which the engine has and wants as JSON text."""
    peer = importlib.import_module("peer.workflow.v1")
    ours: Any = m.PollJobsResponse([m.Job(**JOB, variables=KEPT, step_execution_id="18f2a-3-7")] * count)
    wire = encode_message(ours)
    theirs = peer.PollJobsResponse()
    rust.deserialize(theirs, wire)

    def written() -> bytes:
        for item in theirs.jobs:
            item.variables = type(item.variables)().from_json(VARIABLES.decode())
        return rust.serialize(theirs)

    def parsed() -> Any:
        message = peer.PollJobsResponse()
        rust.deserialize(message, wire)
        for item in message.jobs:
            item.variables.to_json()
        return message

    row(
        "workflow.v1 (Struct), ours", count, lambda: encode_message(ours),
        lambda: decode_message(wire, m.PollJobsResponse), None, None,
    )  # fmt: skip
    row("workflow.v1 (Struct), betterproto2 and Rust", count, attempted(written), attempted(parsed), None, None)


def attempted(work: Callable[[], object]) -> Callable[[], object] | None:
    """None for what the peer has no way to do."""
    try:
        work()
    except Exception as error:
        print(f"<!-- {type(error).__name__}: {str(error)[:100]} -->")
        return None
    return work


def row(name: str, count: int, *work: Callable[[], object] | None) -> None:
    """One line of the table; memory is that of what the decoder makes."""
    decode = work[1]
    held = "–" if decode is None else f"{held_bytes(decode) / count:.0f}"
    print(f"| {name} | {count} | " + " | ".join(microseconds(one) for one in work) + f" | {held} |", flush=True)


def microseconds(work: Callable[[], object] | None) -> str:
    if work is None:
        return "–"
    best = float("inf")
    for _ in range(ROUNDS):
        began, count = time.process_time(), 0
        while time.process_time() - began < ROUND_S:
            work()
            count += 1
        best = min(best, (time.process_time() - began) / count)
    return f"{best * 1e6:.1f}"


def held_bytes(decode: Callable[[], object]) -> float:
    decode()
    gc.collect()
    tracemalloc.start()
    kept = [decode() for _ in range(50)]
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / len(kept)


if __name__ == "__main__":
    main()
