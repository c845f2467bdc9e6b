"""Attacks on the one event loop: a little that is sent, and much that is computed."""

from __future__ import annotations

import base64
import socket
import threading
import time
from typing import Any

from chaos.exposure.rig import Attack, Target
from penstock.testing.definitions import Json, definition, end, service, step
from penstock.wire.protobuf import write_varint

LONG = "${len(filter(1..14000, # > n)) + n}"
"""Near the bound of one expression."""
HEADS = 3_000
CROWD = 9_000


def grpc_halves(target: Target) -> str:
    """a Struct whose Values come in two parts, 10 levels deep: read twice more at each level"""
    value = b"\x20\x01"
    for _ in range(9):
        entry = b"\x0a\x01k\x12" + _length(value) + b"\x12\x00"
        value = b"\x2a" + _length(b"\x0a" + _length(entry)) + b"\x2a\x00"
    return target.rpc("CompleteJob", b"\x1a" + _length(b"\x0a" + _length(b"\x0a\x01k\x12" + _length(value))))


def grpc_fields(target: Target) -> str:
    """4 MB of fields that are given again and again, and of unknown ones"""
    return " ".join(target.rpc("CompleteJob", field * 2_000_000) for field in (b"\x1a\x00", b"\x78\x01"))


def grpc_crowd(target: Target) -> str:
    """32 messages of 4 MB at once, of what may be in one: 190,000 values"""
    message = b"\x1a" + _length(
        b"\x0a" + _length(b"\x0a\x01k\x12" + _length(b"\x32" + _length(b"\x0a\x02\x20\x01" * 190_000)))
    )
    return _many(32, lambda: target.rpc("CompleteJob", message))


def start_compute(target: Target) -> str:
    """one start of 1,000 transformations in a loop of 1,000 steps (cut to 20 of them, for before)"""
    target.upload(_loop("compute", 20))
    status, answer = target.start_instance("compute", {"n": 0})
    return f"{status} {answer.get('status')} {str(answer.get('failureReason'))[:60]}"


def start_crowd(target: Target) -> str:
    """20 starts at once that each stay just within the budget"""
    heavy = step("t", "TRANSFORMATION", transformations={f"x{i}": LONG for i in range(8)}, nextStep="end")
    target.upload(definition(heavy, end(), definition_id="heavy"))
    return _many(20, lambda: str(target.start_instance("heavy", {"n": 0})[0]))


def poison_timer(target: Target) -> str:
    """a timer that leads to as much, the engine killed while it computes, and started again"""
    body = _loop("poison", 20)
    body["steps"].insert(0, step("sleep", "WAIT", duration="PT2S", nextStep="t"))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - a private part
    target.upload(body)
    _, answer = target.start_instance("poison", {"n": 0})
    time.sleep(2.3)
    target.kill()
    target.start()
    time.sleep(1)
    target.wait_quiet()
    _, found = target.call("GET", f"/v1/instances/{answer['id']}")
    return f"{found['status']} {str(found.get('failureReason'))[:60]}"


def definition_regexes(target: Target) -> str:
    """an upload of regular expressions, 0.6 MB"""
    conditions = [{f"s matches '[^a]{{900}}{n}-{i}'": "end" for i in range(990)} for n in range(12)]
    steps = [
        step(f"d{n}", "DECISION", conditionalNextSteps={**each, "true": f"d{n + 1}" if n < 11 else "end"})
        for n, each in enumerate(conditions)
    ]
    return str(target.upload(definition(*steps, end()))[0])


def definition_uploads(target: Target) -> str:
    """8 uploads at once of 450,000 characters of expressions each"""
    bodies = [_expressions(f"large{n}") for n in range(8)]
    return _many(8, lambda: str(target.upload(bodies.pop())[0]))


def definition_reload(target: Target) -> str:
    """a start in an engine that has not met a large definition: 9,000 steps with 1,000 gateways"""
    target.upload(_gateways("gateways"))
    target.kill()
    target.start()
    return str(target.start_instance("gateways", {})[0])


def rest_numbers(target: Target) -> str:
    """8 starts at once with 3.6 MB of `1e1,`"""
    target.upload(definition(service("s", "end"), end(), definition_id="plain"))
    body = b'{"definitionId":"plain","variables":{"a":[' + b"1e1," * 900_000 + b"1]}}"
    return _many(8, lambda: str(target.call("POST", "/v1/instances", body)[0]))


def large_bodies(target: Target) -> str:
    """8 starts at once with 4 MB each of small values, in a workflow that looks at them"""
    decide = step("d", "DECISION", conditionalNextSteps={"n == 0": "s", "true": "end"})
    target.upload(definition(decide, service("s", "end"), end(), definition_id="plain"))
    body = b'{"definitionId":"plain","variables":{"n":0,"a":[' + b"1," * 2_000_000 + b"1]}}"
    return _many(8, lambda: str(target.call("POST", "/v1/instances", body)[0]))


def sealed_bodies(target: Target) -> str:
    """4 starts at once with 4 MB each in 200,000 values, which are encrypted one by one; then all are read"""
    target.upload(definition(service("s", "end"), end(), definition_id="plain"))
    values = ",".join(f'"k{i:06}":"abcdefgh"' for i in range(190_000))
    body = f'{{"definitionId":"plain","variables":{{{values}}}}}'.encode()
    started = _many(4, lambda: str(target.call("POST", "/v1/instances", body)[0]))
    return f"{started}; read: {target.call('GET', '/v1/instances?pageSize=4')[0]}"


def slow_heads(target: Target) -> str:
    """3,000 connections whose heads never end, all out of time at once"""
    streams = []
    for _ in range(HEADS):
        streams.append(socket.create_connection(("127.0.0.1", target.rest_port)))  # pyright: ignore[reportUnknownMemberType] - untyped
        time.sleep(0.001)  # a crowd at the door is another attack
    for stream in streams:  # pyright: ignore[reportUnknownVariableType] - untyped
        stream.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ")  # pyright: ignore[reportUnknownMemberType] - untyped
    refused = sum(stream.recv(64).startswith(b"HTTP/1.1 408") for stream in streams)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType, reportUnknownVariableType] - a stand-in
    for stream in streams:  # pyright: ignore[reportUnknownVariableType] - untyped
        stream.close()  # pyright: ignore[reportUnknownMemberType] - untyped
    return f"{refused} refused"


def crowd(target: Target) -> str:
    """9,000 connections that ask once and stay, three times anew, from three addresses"""
    return _visit(target.rest_port, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", b"HTTP/1.1 200")


def grpc_connections(target: Target) -> str:
    """the same over gRPC: 9,000 connections that say hello and stay"""
    return _visit(target.grpc_port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0", b"")


def _visit(port: int, hello: bytes, answer: bytes) -> str:
    answered = 0
    for _ in range(3):
        streams: list[socket.socket] = []
        for number in range(CROWD):
            home = (f"127.0.0.{2 + number % 3}", 0)
            streams.append(socket.create_connection(("127.0.0.1", port), source_address=home))
            streams[-1].sendall(hello)
            time.sleep(0.0005)
        for stream in streams:
            said = stream.recv(64)
            answered += said.startswith(answer) and said != b""
        for stream in streams:
            stream.close()
    return f"{answered} answered"


ATTACKS: dict[str, Attack] = {
    attack.__name__.replace("_", "-"): attack
    for attack in (
        grpc_halves, grpc_fields, grpc_crowd, start_compute, start_crowd, poison_timer, definition_regexes,
        definition_uploads, definition_reload, rest_numbers, large_bodies, sealed_bodies, slow_heads, crowd,
        grpc_connections,
    )
}  # fmt: skip


SETTINGS = {"sealed-bodies": {"WE_ENCRYPTION_KEYS": f"k1={base64.b64encode(bytes(32)).decode()}"}}
"""What the engine needs besides, by attack."""


def _length(body: bytes) -> bytes:
    return write_varint(len(body)) + body


def _many(count: int, call: Any) -> str:
    """So many at once: how often each answer came."""
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(call())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ", ".join(f"{answers.count(answer)} x {answer}" for answer in sorted(set(answers)))


def _loop(name: str, rounds: int) -> Json:
    written = {f"x{i}": LONG for i in range(50)} | {"n": "${n + 1}"}
    return definition(
        step("t", "TRANSFORMATION", transformations=written, nextStep="d"),
        step("d", "DECISION", conditionalNextSteps={f"n >= {rounds}": "end", "true": "t"}),
        end(),
        definition_id=name,
    )


def _expressions(name: str) -> Json:
    steps = [
        step(f"t{n}", "TRANSFORMATION", nextStep=f"t{n + 1}" if n < 49 else "end",
             transformations={f"v{i}": "${" + "alpha_beta_gamma_delta + " * 35 + f"{n * 10 + i}}}" for i in range(10)})
        for n in range(50)
    ]  # fmt: skip
    return definition(*steps, end(), definition_id=name)


def _gateways(name: str) -> Json:
    steps: list[Json] = []
    for n in range(1_000):
        heads = [f"a{n}", f"b{n}"]
        steps += [
            step(f"g{n}", "PARALLEL_GATEWAY", parallelNextSteps=heads, joinStep=f"j{n}"),
            step(f"a{n}", "SERVICE_TASK", jobType="x", conditionalNextSteps={"n > 1": f"j{n}", "true": "tail0"}),
            service(f"b{n}", f"j{n}", job_type="x"),
            step(f"j{n}", "JOIN_GATEWAY", nextStep=f"g{n + 1}" if n < 999 else "tail0"),
        ]
    steps += [service(f"tail{n}", f"tail{n + 1}" if n < 4_999 else "end", job_type="x") for n in range(5_000)]
    return definition(*steps, end(), definition_id=name)
