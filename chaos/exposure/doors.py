"""Attacks on the door: connections that ask for nothing, opened anew as soon as they are closed, and a known caller
who comes on new connections meanwhile. The attacker is a process of its own (`chaos.exposure.crowd`).
"""

from __future__ import annotations

import hashlib
import http.client
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast

import grpc

from chaos.exposure.rig import Attack, Target
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import encode_message
from penstock.wire.http2_frames import PREFACE

TOKEN: Final = "pst_" + "A" * 42 + "A"
CALLS: Final = 15
CALL_LIMIT_S: Final = 1.0
PATIENCE_S: Final = 10.0
SETTLE_S: Final = 1.0
HALF_HEAD: Final = b"GET /v1/instances HTTP/1.1\r\nhost: localhost\r\nx: "
GREETED: Final = PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
HALF_BODY: Final = b"POST /v1/instances HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000\r\n\r\n{"
KNOWN: Final = {
    "WE_AUTHENTICATION": "true",
    "WE_API_TOKENS": f"known=viewer=sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}",
    "WE_METRICS_ENABLED": "true",
}
SERVERS: Final = {"hypercorn": {"WE_HTTP_SERVER": "hypercorn"}, "processes": {"WE_PROCESSES": "2"}}
"""REST by another server, or by two processes."""
SENT: Final = {"silent": b"", "half": HALF_HEAD, "body": HALF_BODY, "greeted": GREETED, "cut": PREFACE[:10]}


SETTINGS: dict[str, dict[str, str]] = {}
"""What the engine needs besides, by attack."""


@contextmanager
def under_attack(port: int, connections: int, hosts: int, kind: str) -> Generator[None]:
    """For the block."""
    command = [sys.executable, str(Path(__file__).with_name("crowd.py")), str(port), str(connections), str(hosts)]
    attacker = subprocess.Popen([*command, SENT[kind].hex()], stdout=subprocess.PIPE)
    try:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == b"all dialled\n"
        time.sleep(SETTLE_S)
        yield
    finally:
        attacker.kill()
        attacker.wait()


def rest_call(port: int, path: str) -> bool:
    """A known caller's, on a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {TOKEN}"})
        return connection.getresponse().status == 200
    finally:
        connection.close()


def rpc_call(port: int) -> bool:
    """The same over gRPC."""
    request = encode_message(m.ListInstancesRequest(page_size=1))
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = cast(Any, channel).unary_unary("/workflow.v1.WorkflowEngine/ListInstances")
        call(request, timeout=PATIENCE_S, metadata=(("authorization", f"Bearer {TOKEN}"),), wait_for_ready=True)
    return True


def ask(port: int, how: str) -> str:
    """What became of the known caller's calls."""
    took: list[float] = []
    answered = 0
    for _ in range(CALLS):
        began = time.monotonic()
        with suppress(OSError, http.client.HTTPException, grpc.RpcError):
            path = "/metrics" if how == "metrics" else "/v1/instances"
            answered += rpc_call(port) if how == "grpc" else rest_call(port, path)
        took.append(time.monotonic() - began)
    late = sum(each > CALL_LIMIT_S for each in took)
    return f"{answered} of {CALLS} answered, {late} late, worst {max(took):.2f} s"


def _attack(how: str, kind: str, connections: int, hosts: int) -> Attack:
    def run(target: Target) -> str:
        port = {"grpc": target.grpc_port, "metrics": target.metrics_port}.get(how, target.rest_port)
        with under_attack(port, connections, hosts, kind):
            return ask(port, how)

    SETTINGS[f"{how}_{kind}_{hosts}"] = KNOWN | SERVERS.get(how, {})
    run.__doc__ = f"{connections} {kind} connections to {how} from {hosts} addresses; a known caller on new ones"
    return run


ATTACKS: dict[str, Attack] = {
    f"{how}_{kind}_{hosts}": _attack(how, kind, connections, hosts)
    for how, kind, connections in [
        ("rest", "silent", 11_000), ("rest", "half", 12_000), ("rest", "body", 12_000),
        ("hypercorn", "silent", 11_000), ("hypercorn", "half", 12_000), ("processes", "half", 12_000),
        ("metrics", "silent", 1_200), ("metrics", "half", 1_200),
        ("grpc", "silent", 11_000), ("grpc", "cut", 11_000), ("grpc", "greeted", 11_000),
    ]
    for hosts in (1, 500)
}  # fmt: skip
