"""Health and reflection, as their clients see them (tests/rpc/test_go.py has Go's)."""

from __future__ import annotations

import pytest
import trio

from penstock.rpc.health import Health
from penstock.rpc.methods import service_names
from penstock.rpc.reflection import Reflection
from penstock.wire.codec import decode_message, encode_message
from penstock.wire.grpc_health import HealthCheckRequest, HealthCheckResponse
from penstock.wire.grpc_reflection import ExtensionRequest, ServerReflectionRequest, ServerReflectionResponse
from tests.rpc.conftest import running
from tests.rpc.raw import framed
from tests.rpc.services import Engine

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
SERVICE = "workflow.v1.WorkflowEngine"


def asks(service: str) -> bytes:
    return encode_message(HealthCheckRequest(service))


def status_in(message: bytes) -> int:
    return decode_message(message, HealthCheckResponse).status


async def test_health_tells_of_all_services_and_of_each() -> None:
    health = Health([SERVICE])
    with trio.fail_after(60):
        async with running(more=[health]) as run, run.client() as client:
            for name in ("", SERVICE, "grpc.health.v1.Health"):
                assert status_in((await client.call(CHECK, asks(name))).messages[0]) == 2
            health.set_serving(True)
            for name in ("", SERVICE, "grpc.health.v1.Health"):
                assert status_in((await client.call(CHECK, asks(name))).messages[0]) == 1
            assert (await client.call(CHECK, asks("other"))).status == 5


async def test_a_watcher_is_told_every_change_and_the_drain() -> None:
    health = Health([SERVICE])
    with trio.fail_after(60):
        async with running(more=[health]) as run, run.client() as client, trio.open_nursery() as nursery:
            stream_id = await client.open(WATCH)
            await client.send(stream_id, framed(asks(SERVICE)), end=True)
            for count, serving in ((2, True), (3, False), (4, True)):
                await client.messages(stream_id, count - 1)
                health.set_serving(serving)
                health.set_serving(serving)
                await client.messages(stream_id, count)
            nursery.start_soon(run.server.drain, 5.0)
            answer = await client.finished(stream_id)
            assert [status_in(message) for message in answer.messages] == [2, 1, 2, 1, 2]
            assert answer.status == 14


async def test_a_watcher_of_an_unknown_service_is_kept() -> None:
    with trio.fail_after(60):
        async with running(more=[Health([])]) as run, run.client() as client:
            stream_id = await client.open(WATCH)
            await client.send(stream_id, framed(asks("other")), end=True)
            [message] = await client.messages(stream_id, 1)
            assert status_in(message) == 3
            assert not client.answers[stream_id].done.is_set()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_services_and_gives_files_with_all_they_need(version: str) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    services = service_names(Engine().__mapping__())
    requests = [
        ServerReflectionRequest(host="h", list_services=""),
        ServerReflectionRequest(file_containing_symbol="workflow.v1.WorkflowEngine.PollJobs"),
        ServerReflectionRequest(file_by_filename="penstock/v1/worker.proto"),
        ServerReflectionRequest(file_containing_symbol="workflow.v1.Nothing"),
        ServerReflectionRequest(file_containing_extension=ExtensionRequest("workflow.v1.Job", 1)),
        ServerReflectionRequest(all_extension_numbers_of_type="workflow.v1.Job"),
        ServerReflectionRequest(all_extension_numbers_of_type="nothing"),
        ServerReflectionRequest(),
    ]
    with trio.fail_after(60):
        async with running(more=[Reflection(services)]) as run, run.client() as client:
            stream_id = await client.open(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
            for request in requests:
                await client.send(stream_id, framed(encode_message(request)))
            await client.send(stream_id, b"", end=True)
            answer = await client.finished(stream_id)
    answers = [decode_message(message, ServerReflectionResponse) for message in answer.messages]
    assert [reply.original_request for reply in answers] == requests
    listed = answers[0].list_services_response
    assert listed is not None
    assert [service.name for service in listed.service] == [
        "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
        "penstock.v1.Worker", "workflow.v1.WorkflowEngine",
    ]  # fmt: skip

    def names(reply: ServerReflectionResponse) -> list[str]:
        assert reply.file_descriptor_response is not None
        return [
            FileDescriptorProto.FromString(data).name for data in reply.file_descriptor_response.file_descriptor_proto
        ]

    assert names(answers[1])[0] == "workflow/v1/engine.proto"
    assert sorted(names(answers[1])[1:]) == ["google/protobuf/struct.proto", "google/protobuf/timestamp.proto"]
    assert names(answers[2]) == ["penstock/v1/worker.proto", "google/protobuf/timestamp.proto"]
    assert [reply.error_response.error_code if reply.error_response else None for reply in answers[3:]] == [
        5,
        5,
        None,
        5,
        3,
    ]


async def test_every_name_that_google_knows_is_found() -> None:
    import base64

    from google.protobuf import descriptor_pb2

    from penstock.rpc.descriptors import FILE_DESCRIPTOR_SET
    from penstock.rpc.reflection import Descriptors

    data = base64.b85decode(FILE_DESCRIPTOR_SET)
    known = Descriptors(data)

    def message_names(scope: str, message: descriptor_pb2.DescriptorProto) -> list[str]:
        name = f"{scope}.{message.name}"
        found = [name, *(f"{name}.{item.name}" for item in message.field)]
        for nested in message.nested_type:
            found += message_names(name, nested)
        return found + [f"{name}.{enum.name}" for enum in message.enum_type]

    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        symbols = [symbol for message in file.message_type for symbol in message_names(file.package, message)]
        symbols += [f"{file.package}.{enum.name}" for enum in file.enum_type]
        for service in file.service:
            symbols += [f"{file.package}.{service.name}"]
            symbols += [f"{file.package}.{service.name}.{method.name}" for method in service.method]
        for symbol in symbols:
            assert known.of_symbol(symbol)[0] == file.SerializeToString(), symbol
