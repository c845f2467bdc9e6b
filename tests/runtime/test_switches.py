"""What an engine tells of itself can be switched off."""

from __future__ import annotations

import socket

import grpc
import pytest

from tests.runtime.conftest import StartEngine

METHOD = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def reflection_code(port: int) -> grpc.StatusCode:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(METHOD)(iter([b":\x00"]), timeout=10)  # list_services
        try:
            next(call)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


@pytest.mark.slow(reason="starts engine processes")
@pytest.mark.parametrize("processes", [1, 2])
def test_metrics_docs_and_reflection_can_be_switched_off(start_engine: StartEngine, processes: int) -> None:
    off = {"metrics_enabled": "false", "docs_enabled": "false", "grpc_reflection_enabled": "false"}
    engine = start_engine(processes=processes, **off)
    line = engine.wait_said("ready", *(["processes"] if processes > 1 else []))
    assert "metrics" not in line
    engine.port = int(line["REST"].rpartition(":")[2])
    assert engine.call("GET", "/docs")[0] == 404
    assert engine.call("GET", "/openapi.json")[0] == 404
    assert engine.call("GET", "/v1/instances")[0] == 200
    assert reflection_code(int(line["gRPC"].rpartition(":")[2])) is grpc.StatusCode.UNIMPLEMENTED
    assert engine.stop() == 0


@pytest.mark.slow(reason="starts engine processes")
def test_they_are_on_by_default(start_engine: StartEngine) -> None:
    engine = start_engine().wait_ready()
    assert engine.call("GET", "/openapi.json")[0] == 200
    assert reflection_code(engine.grpc_port) is grpc.StatusCode.OK
    with socket.create_connection(("127.0.0.1", engine.metrics_port), timeout=10):
        pass
