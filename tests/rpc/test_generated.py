"""What is checked in is what the proto files say; the structs have the same fields."""

from __future__ import annotations

import subprocess
import sys
import warnings
from datetime import datetime
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, get_args, get_origin

import msgspec
import pytest

from penstock.wire import (
    batch,
    batches_v1,
    grpc_health,
    grpc_reflection,
    model,
    penstock_v1,
    repair,
    repair_v1,
    runs_v1,
    schedule,
    schedules_v1,
    start,
    update,
    updates_v1,
    workflow_v1,
)
from penstock.wire.codec import (
    BOOL,
    INT32,
    JSON,
    MILLIS,
    OPTIONAL_INT32,
    STRUCT,
    TEXT,
    UINT32,
    VALUE,
    WORDS,
    Proto,
    fields_of,
)
from tools.generate_wire import NOUNS, OTHER_NAMES, PYTHON_NAMES

SHARED = {message for messages in NOUNS.values() for message in messages}
NOUN_OF = {message: noun for noun, messages in NOUNS.items() for message in messages}
ROOT = Path(__file__).resolve().parents[2]


def test_the_generated_files_are_those_of_the_proto_files() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "generate_wire.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"run python tools/generate_wire.py\n{done.stdout}{done.stderr}"


def descriptors() -> Any:
    import base64

    from google.protobuf import descriptor_pb2, descriptor_pool

    from penstock.rpc.descriptors import FILE_DESCRIPTOR_SET

    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(base64.b85decode(FILE_DESCRIPTOR_SET)).file:
        pool.Add(file)
    return pool


PACKAGES = [
    (workflow_v1, "workflow.v1", "workflow/v1/engine.proto"),
    (penstock_v1, "penstock.v1", "penstock/v1/worker.proto"),
    (schedules_v1, "penstock.v1", "penstock/v1/schedules.proto"),
    (updates_v1, "penstock.v1", "penstock/v1/updates.proto"),
    (repair_v1, "penstock.v1", "penstock/v1/repair.proto"),
    (runs_v1, "penstock.v1", "penstock/v1/runs.proto"),
    (batches_v1, "penstock.v1", "penstock/v1/batches.proto"),
    (grpc_health, "grpc.health.v1", "grpc/health/v1/health.proto"),
    (grpc_reflection, "grpc.reflection.v1", "grpc/reflection/v1/reflection.proto"),
    (grpc_reflection, "grpc.reflection.v1alpha", "grpc/reflection/v1alpha/reflection.proto"),
]


NOUN_MODULES = (model, schedule, repair, start, batch, update)


def noun_class(noun: str) -> type[msgspec.Struct]:
    found: type[msgspec.Struct]
    (found,) = {vars(module)[noun] for module in NOUN_MODULES if noun in vars(module)}
    return found


def structs(module: ModuleType) -> dict[str, type[msgspec.Struct]]:
    """The messages of a package by their names in the proto file, with the classes of the model that it shares."""
    package = str(vars(module)["PACKAGE"])
    shared = {
        message.rpartition(".")[2]: noun_class(noun)
        for noun, messages in NOUNS.items()
        for message in messages
        if message.rpartition(".")[0] == package
    }
    return shared | {
        name: kind
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__
        and not name.startswith("_")
    }  # fmt: skip


@pytest.mark.parametrize(("module", "package", "file"), PACKAGES)
def test_structs_equal_the_proto_messages_field_by_field(module: ModuleType, package: str, file: str) -> None:
    pool = descriptors()
    there = set(pool.FindFileByName(file).message_types_by_name)
    found = {
        name: kind
        for name, kind in structs(module).items()
        if name in there or kind.__module__ == module.__name__  # a package may have several files
    }
    assert set(found) == there
    for name, kind in found.items():
        message = pool.FindMessageTypeByName(f"{package}.{name}")
        fields = {field.name: (field.number, kind_in(field)) for field in message.fields}
        if name == "ExtensionNumberResponse":
            fields.pop("extension_number")
        shared = f"{module.PACKAGE}.{name}" in SHARED
        ours = {
            other_name(package, name, field): (proto.number, kind_of(python_type, proto))
            for field, python_type, proto in fields_of(kind, module.PACKAGE)
        }
        assert ours == fields, name
        assert shared == (kind.__module__ in {module.__name__ for module in NOUN_MODULES}), name
        assert kind() == kind(), name  # every field has a default


def other_name(package: str, message: str, field: str) -> str:
    """The name of a field of the model in a message of gRPC."""
    prefix, noun = f"{package}.{message}.", NOUN_OF.get(f"{package}.{message}")
    json_names = {ours: name.partition(".")[2] for name, ours in PYTHON_NAMES.items() if name.startswith(f"{noun}.")}
    field = json_names.get(field, field)
    theirs = {ours: name.removeprefix(prefix) for name, ours in OTHER_NAMES.items() if name.startswith(prefix)}
    return theirs.get(field, field)


def test_classes_of_the_model_have_the_names_of_json() -> None:
    job = msgspec.json.encode(model.Job(id="j", job_type="t"))
    assert list(msgspec.json.decode(job)) == [
        "id", "jobType", "instanceId", "stepId", "stepExecutionId", "retriesRemaining", "variables", "status",
        "idempotencyKey", "definitionId", "definitionVersion",
    ]  # fmt: skip
    failure = msgspec.json.decode(b'{"jobId":null,"retryable":null,"retryAfterSeconds":2}', type=model.Failure)
    assert (failure.job_id, failure.retryable, failure.retry_after_s) == (None, None, 2)


def test_the_words_of_an_enum_are_the_proto_files() -> None:
    pool = descriptors()
    for noun, messages in NOUNS.items():
        for message in messages:
            package = message.rpartition(".")[0]
            fields = pool.FindMessageTypeByName(message).fields_by_number
            for _, _, proto in fields_of(noun_class(noun), package):
                if proto.kind == WORDS:
                    names = [value.name for value in fields[proto.number].enum_type.values]
                    assert [name.endswith(word) for name, word in zip(names, proto.words, strict=True)], message
                    assert proto.words[0] == ""


def kind_in(field: Any) -> str:
    """A field's kind in the words of ``kind_of``."""
    type_name = field.message_type.full_name if field.message_type else ""
    if field.message_type and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        return "map of value" if value.message_type else "map of string"
    names = {1: "double", 5: "int32", 8: "bool", 9: "string", 12: "bytes", 13: "uint32", 14: "int32"}
    kind: str = {  # pyright: ignore[reportAssignmentType] - a stand-in
        "google.protobuf.Struct": "struct", "google.protobuf.Timestamp": "timestamp", **NOUN_OF,
    }.get(type_name, type_name.rpartition(".")[2]) if type_name else names[field.type]  # fmt: skip
    if field.containing_oneof is not None and not type_name:
        kind += " or none"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        repeated = field.label == 3 if not hasattr(field, "is_repeated") else field.is_repeated
    return f"list of {kind}" if repeated else kind


def kind_of(python_type: Any, proto: Proto) -> str:
    origin, args = get_origin(python_type), get_args(python_type)
    if origin is UnionType and args[0] is int and proto.kind in ("", UINT32):
        return f"{proto.kind or INT32} or none"
    if proto.kind in (STRUCT, UINT32, TEXT, INT32, OPTIONAL_INT32, BOOL):
        return proto.kind
    if proto.kind in (JSON, MILLIS, WORDS):
        return {JSON: "bytes", MILLIS: "uint32", WORDS: "int32"}[proto.kind]
    if origin is dict:
        return "map of value" if proto.kind == VALUE else "map of string"
    if origin is list:
        return f"list of {kind_of(args[0], Proto(0))}"
    if origin is UnionType:
        inner = kind_of(args[0], Proto(0))
        return f"{inner} or none" if args[0] in (str, bool) else inner
    plain = {str: "string", bytes: "bytes", int: "int32", bool: "bool", datetime: "timestamp"}
    return plain.get(python_type) or python_type.__name__


@pytest.mark.parametrize(
    ("ours", "package", "enum"),
    [
        (workflow_v1.StepType, "workflow.v1", "StepType"),
        (workflow_v1.InstanceStatus, "workflow.v1", "InstanceStatus"),
        (workflow_v1.BoundaryEventType, "workflow.v1", "BoundaryEventType"),
        (grpc_health.ServingStatus, "grpc.health.v1", "HealthCheckResponse.ServingStatus"),
    ],
)
def test_the_enums_are_those_of_the_proto_file(ours: Any, package: str, enum: str) -> None:
    theirs = descriptors().FindEnumTypeByName(f"{package}.{enum}")
    import re

    prefix = "" if ours is grpc_health.ServingStatus else re.sub(r"(?<!^)(?=[A-Z])", "_", enum).upper() + "_"
    assert {prefix + member.name: member.value for member in ours} == {v.name: v.number for v in theirs.values}


def test_the_contract_stands_in_the_proto_file() -> None:
    """A few that a slip would not show otherwise; the whole is contract.md, 3."""
    pool = descriptors()
    file = pool.FindFileByName("workflow/v1/engine.proto")
    from google.protobuf import descriptor_pb2

    plain = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(plain)
    assert plain.options.java_package == "com.batnam.workflow.api.v1"
    [task] = [message for message in plain.message_type if message.name == "CompleteUserTaskRequest"]
    assert [(gap.start, gap.end) for gap in task.reserved_range] == [(1, 2)]
    assert list(task.reserved_name) == ["user_task_id"]
    assert [method.name for method in plain.service[0].method] == [
        "UploadDefinition", "GetDefinition", "ListDefinitions", "StartInstance", "GetInstance", "GetInstanceHistory",
        "CancelInstance", "ListInstances", "PollJobs", "CompleteJob", "FailJob", "CompleteUserTask", "SignalWait",
    ]  # fmt: skip


def test_nothing_that_runs_needs_protobuf_or_grpcio() -> None:
    code = (
        "import sys; import penstock.rpc.server, penstock.rpc.health, penstock.rpc.reflection, penstock.rpc.problems,"
        " penstock.wire.workflow_v1, penstock.wire.penstock_v1;"
        " print([m for m in ('google.protobuf', 'grpc') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.stdout.strip() == "[]"
