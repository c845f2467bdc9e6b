"""Attacks on memory: much that is asked for, and little or nothing of it read; and frames that carry nothing."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import h2.connection
import h2.settings

from chaos.exposure.rig import Attack, Target
from penstock.testing.definitions import linear
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import encode_message

INSTANCES = 60
VARIABLES_BYTES = 3_000_000
LIST = b"GET /v1/instances?pageSize=200 HTTP/1.1\r\nhost: localhost\r\n\r\n"
BODY_BYTES = 8_388_608
HOLD_S = 8.0
"""How long clients that don't read stay."""
FLOOD_BYTES = 4_000_000


def lists(target: Target) -> str:
    """8 lists at once of instances with 180 MB of variables, read to the end"""
    _fill(target)
    return _at_once(8, lambda: str(target.call("GET", "/v1/instances?pageSize=200")[0]))


def unread(target: Target) -> str:
    """150 clients that ask for lists, instances and jobs of 3 MB, and don't read"""
    id = _fill(target)
    poll = json.dumps({"workerId": "w", "jobTypes": ["work"], "maxJobs": 100}).encode()
    requests = [
        LIST,
        b"GET /v1/instances/%b HTTP/1.1\r\nhost: localhost\r\n\r\n" % id.encode(),
        b"POST /v1/jobs/poll HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(poll), poll),
    ]
    clients = [socket.create_connection(("127.0.0.1", target.rest_port)) for _ in range(150)]
    for number, client in enumerate(clients):
        client.sendall(requests[number % len(requests)])
    time.sleep(HOLD_S)
    statuses = Counter[str]()
    for client in clients:
        client.setblocking(False)
        with suppress(OSError):
            statuses[client.recv(12)[9:].decode()] += 1
        client.close()
    return _described(statuses)


def held_bodies(target: Target) -> str:
    """40 clients that send 8 MB each but for the last byte, and hold it; others poll meanwhile"""
    head = b"POST /v1/instances HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % BODY_BYTES
    clients = [socket.create_connection(("127.0.0.1", target.rest_port)) for _ in range(40)]
    for client in clients:
        with suppress(OSError):
            client.sendall(head + b"x" * (BODY_BYTES - 1))
    time.sleep(1)
    poll = {"workerId": "w", "jobTypes": ["work"]}
    outcomes = Counter(str(target.call("POST", "/v1/jobs/poll", poll)[0]) for _ in range(20))
    for client in clients:
        client.close()
    return _described(outcomes)


def grpc_window(target: Target) -> str:
    """one gRPC connection with a window of 0 and 200 calls"""
    id = _fill(target)
    calls = [
        ("ListInstances", encode_message(m.ListInstancesRequest(page_size=20))),
        ("GetInstance", encode_message(m.GetInstanceRequest(id))),
    ]
    with socket.create_connection(("127.0.0.1", target.grpc_port)) as client:
        h2 = _h2(client, window_bytes=0)
        for number in range(200):
            method, message = calls[number % len(calls)]
            stream_id = _open(h2, method)
            h2.send_data(stream_id, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
            client.sendall(h2.data_to_send())
        time.sleep(HOLD_S)
        return f"{len(client.recv(1 << 20))} bytes came back"


def parked(target: Target) -> str:
    """1,000 long polls that name 1,000 job types each"""
    clients: list[socket.socket] = []
    for number in range(1_000):
        types = [f"some-job-type-{number}-{index}" for index in range(1_000)]
        body = json.dumps({"workerId": "w", "jobTypes": types, "waitSeconds": 60}).encode()
        clients.append(socket.create_connection(("127.0.0.1", target.rest_port)))
        head = b"POST /v1/jobs/poll HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
        clients[-1].sendall(head + body)
    time.sleep(HOLD_S)
    statuses = Counter[str]()
    for client in clients:
        client.setblocking(False)
        try:
            statuses[client.recv(12)[9:].decode()] += 1
        except BlockingIOError:
            statuses["parked"] += 1
        client.close()
    return _described(statuses)


def window_updates(target: Target) -> str:
    """4 MB of WINDOW_UPDATE frames"""
    return _flood(target, _frame(8, 0, 0, struct.pack(">I", 1)))


def ping_acks(target: Target) -> str:
    """4 MB of answers to pings that nobody sent"""
    return _flood(target, _frame(6, 1, 0, b"12345678"))


def unknown_frames(target: Target) -> str:
    """4 MB of frames of an unknown type"""
    return _flood(target, _frame(0x77, 0, 0, b"x"))


def tiny_data(target: Target) -> str:
    """a message sent byte by byte, 400,000 of them"""
    return _flood(target, _frame(0, 0, 1, b"\0"), opened=True)


# -- what they share


def _fill(target: Target) -> str:
    """Instances with large variables; the id of one."""
    target.upload(linear(1))
    started = [target.start_instance("linear", {"text": "x" * VARIABLES_BYTES}) for _ in range(INSTANCES)]
    return str(started[-1][1]["id"])


def _at_once(count: int, work: Callable[[], str]) -> str:
    outcomes = Counter[str]()

    def one() -> None:
        outcomes[work()] += 1

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _described(outcomes)


def _described(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} × {what}" for what, count in outcomes.items())


def _h2(client: socket.socket, window_bytes: int) -> h2.connection.H2Connection:
    connection = h2.connection.H2Connection()
    initial = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window_bytes}
    connection.local_settings = h2.settings.Settings(client=True, initial_values=initial)
    connection.initiate_connection()
    client.sendall(connection.data_to_send())
    connection.receive_data(client.recv(65_536))
    client.sendall(connection.data_to_send())
    return connection


def _open(connection: h2.connection.H2Connection, method: str) -> int:
    stream_id = connection.get_next_available_stream_id()
    path = f"/workflow.v1.WorkflowEngine/{method}"
    connection.send_headers(
        stream_id,
        [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"), ("te", "trailers"),
         ("content-type", "application/grpc")],
    )  # fmt: skip
    return stream_id


def _flood(target: Target, frame: bytes, *, opened: bool = False) -> str:
    with socket.create_connection(("127.0.0.1", target.grpc_port)) as client:
        h2 = _h2(client, window_bytes=65_535)
        if opened:
            _open(h2, "CompleteJob")
            client.sendall(h2.data_to_send() + _frame(0, 0, 1, b"\0\0\x3f\xff\xff"))
        try:
            for _ in range(FLOOD_BYTES // len(frame) // 1_000):
                client.sendall(frame * 1_000)
            client.settimeout(10)
            while client.recv(65_536):
                pass
        except TimeoutError:
            return "all of it was taken"
        except OSError:
            pass
        return "the connection was ended"


def _frame(kind: int, flags: int, stream_id: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + body


ATTACKS: dict[str, Attack] = {
    "lists": lists,
    "unread": unread,
    "held-bodies": held_bodies,
    "grpc-window": grpc_window,
    "parked": parked,
    "window-updates": window_updates,
    "ping-acks": ping_acks,
    "unknown-frames": unknown_frames,
    "tiny-data": tiny_data,
}
