"""Generates the messages of ``penstock.wire`` from proto/: ``python tools/generate_wire.py [--check]``.

Each proto file becomes one module of msgspec structs: one class per message with the names of the proto file, each
field annotated with its number (`penstock.wire.codec.Proto`). What several transports speak of is one class for all:
penstock.wire.model, with the fields of proto/penstock/rest and the numbers of every package that has it (``NOUNS``).
And one module holds the file descriptors that server reflection answers with. Needs the dev dependencies grpcio-tools
(protoc, and google.protobuf to read its descriptors) and ruff (form); what it writes needs none of them. With
``--check`` it writes nothing and exits 1 when a checked-in file is stale, 2 when a tool is missing.
"""

from __future__ import annotations

import base64
import importlib.util
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import (
        DescriptorProto,
        EnumDescriptorProto,
        FieldDescriptorProto,
        FileDescriptorProto,
    )

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
PACKAGE = ROOT / "src" / "penstock"
DESCRIPTORS = PACKAGE / "rpc" / "descriptors.py"
MODULES = {
    "workflow/v1/engine.proto": PACKAGE / "wire" / "workflow_v1.py",
    "penstock/v1/worker.proto": PACKAGE / "wire" / "penstock_v1.py",
    "penstock/v1/schedules.proto": PACKAGE / "wire" / "schedules_v1.py",
    "penstock/v1/repair.proto": PACKAGE / "wire" / "repair_v1.py",
    "penstock/v1/runs.proto": PACKAGE / "wire" / "runs_v1.py",
    "penstock/v1/batches.proto": PACKAGE / "wire" / "batches_v1.py",
    "penstock/v1/updates.proto": PACKAGE / "wire" / "updates_v1.py",
    "grpc/health/v1/health.proto": PACKAGE / "wire" / "grpc_health.py",
    # v1alpha has the same messages in a package of another name.
    "grpc/reflection/v1/reflection.proto": PACKAGE / "wire" / "grpc_reflection.py",
}
NOUNS_FILE, NOUNS_MODULE = "penstock/rest/v1/rest.proto", PACKAGE / "wire" / "model.py"
NOUNS = {
    "Job": ("workflow.v1.Job", "penstock.v1.Job"),
    "Completion": ("workflow.v1.CompleteJobRequest", "penstock.v1.Completion"),
    "Failure": ("workflow.v1.FailJobRequest", "penstock.v1.Failure"),
    "Park": ("penstock.v1.Park",),
    "JobRef": ("penstock.v1.Release",),
    "Heartbeat": ("penstock.v1.Heartbeat",),
    "Instance": ("workflow.v1.WorkflowInstance", "penstock.v1.Instance"),
    "Dedupe": ("penstock.v1.Dedupe",),
    "Throttle": ("penstock.v1.Throttle",),
    "Debounce": ("penstock.v1.Debounce",),
    "StartRequest": ("workflow.v1.StartInstanceRequest", "penstock.v1.StartItem"),
    "StartResult": ("penstock.v1.StartResult",),
    "PollRequest": ("workflow.v1.PollJobsRequest",),
    "JobOutcome": ("penstock.v1.JobOutcome",),
    "HeartbeatOutcome": ("penstock.v1.HeartbeatOutcome",),
    "UserTaskCompletion": ("workflow.v1.CompleteUserTaskRequest",),
    "Signal": ("workflow.v1.SignalWaitRequest",),
    "PublishRequest": ("penstock.v1.Message",),
    "MessageReceiver": ("penstock.v1.MessageReceiver",),
    "PublishedMessage": ("penstock.v1.PublishedMessage",),
    "MessageResult": ("penstock.v1.MessageResult",),
    "KeptMessage": (),
    "StepExecution": ("workflow.v1.StepExecution",),
    "Attempt": (),
    "RecordedAttempt": (),
    "ItemCounts": (),
    "AuditRecord": (),
    "KeptSignal": (),
    "FailedJob": (),
    "LostJob": (),
    "Lease": (),
    "DefinitionSummary": (),
    "JournalRecord": (),
    "Branch": ("penstock.v1.Branch",),
    "RejectedMessage": ("penstock.v1.RejectedMessage",),
    "ForkedFrom": ("penstock.v1.ForkedFrom",),
    "RunTree": ("penstock.v1.RunTree",),
    "MigrationCheck": ("penstock.v1.MigrationCheck",),
    "BulkCause": ("penstock.v1.BulkCause",),
    "BulkStep": ("penstock.v1.BulkStep",),
    "BulkRefusals": ("penstock.v1.BulkRefusals",),
    "BulkPreview": ("penstock.v1.BulkPreview",),
    "BulkStarted": ("penstock.v1.BulkStarted",),
    "BulkDetails": ("penstock.v1.BulkDetails",),
    "BulkOutcome": ("penstock.v1.BulkOutcome",),
    "BulkView": ("penstock.v1.BulkOperation",),
    "StepImpact": ("penstock.v1.StepImpact",),
    "VersionImpact": ("penstock.v1.VersionImpact",),
    "ChangedSteps": ("penstock.v1.ChangedSteps",),
    "ImpactView": ("penstock.v1.Impact",),
    "ScheduleSpec": ("penstock.v1.ScheduleSpec",),
    "ScheduleRun": ("penstock.v1.ScheduleRun",),
    "Schedule": ("penstock.v1.Schedule",),
    "ScheduleTime": ("penstock.v1.ScheduleTime",),
    "SchedulePreview": ("penstock.v1.PreviewScheduleResponse",),
    "Batch": ("penstock.v1.Batch",),
    "BatchResult": ("penstock.v1.BatchResult",),
    "UpdateCall": ("penstock.v1.UpdateCall",),
    "RunUpdate": ("penstock.v1.RunUpdate",),
    "RunView": ("penstock.v1.RunView",),
}
"""Which messages of gRPC each class of the model is. Their fields have its fields' names, but for these."""
OWN_MODULES = {
    "schedule": ("ScheduleSpec", "ScheduleRun", "Schedule", "ScheduleTime", "SchedulePreview"),
    "start": ("Dedupe", "Throttle", "Debounce"),
    "batch": ("Batch", "BatchResult"),
    "update": ("UpdateCall", "RunUpdate", "RunView"),
    "repair": (
        "MigrationCheck", "BulkCause", "BulkStep", "BulkRefusals", "BulkPreview", "BulkStarted", "BulkDetails",
        "BulkOutcome", "BulkView", "StepImpact", "VersionImpact", "ChangedSteps", "ImpactView",
    ),
}  # fmt: skip
"""Nouns that have a module of their own."""
OTHER_NAMES = {
    "penstock.v1.Failure.retry_after_ms": "retry_after_seconds",
    "penstock.v1.BulkOperation.per_1000_seconds": "per_second",
    "penstock.v1.StartItem.wait_ms": "wait_seconds",
    "workflow.v1.CompleteJobRequest.variables_to_set": "variables",
    "workflow.v1.CompleteUserTaskRequest.user_task_step_id": "step_id",
    "workflow.v1.CompleteUserTaskRequest.result": "variables",
    "workflow.v1.SignalWaitRequest.wait_step_id": "step_id",
}
REQUESTS = {
    "Completion", "Failure", "Park", "JobRef", "Heartbeat", "Dedupe", "Throttle", "Debounce", "StartRequest",
    "PollRequest", "UserTaskCompletion", "Signal", "PublishRequest", "ScheduleSpec", "UpdateCall",
}  # fmt: skip
"""What the engine is told; it says the others."""
LEFT_OUT_EMPTY = {
    "Instance.progress",
    "StepExecution.attempts",
    "JournalRecord.path",
    "Branch.children",
    "RunTree.mail",
    "RunTree.rejected",
    "RejectedMessage.path",
    "BulkDetails.steps",
    "BulkDetails.remove",
}
"""Not in the JSON when empty; other fields of what only REST says always are."""
METHODS = {"Instance": "InstanceMethods"}
"""Hand-written bases."""
EXTENDS = {"HeartbeatOutcome": "JobOutcome", "RecordedAttempt": "Attempt"}
"""Nouns that are another one with more fields."""
CLASS_NAMES = {"Outcome": "OutcomeCode"}
"""Enums that have another name here, where the word alone means something else."""
OTHER_WORDS = {".penstock.v1.Outcome"}
"""Enums whose words are `not-found` in JSON, not `NOT_FOUND`."""
PYTHON_NAMES = {"Failure.retry_after_seconds": "retry_after_s"}
LEFT_OUT = {"ExtensionNumberResponse.extension_number"}
"""A packed list of numbers, which the codec does not know: proto3 messages have no extensions to number."""

ROW_SERVICES = {"Schedules", "Flow", "Repair", "Batches", "Updates"}
"""Whose requests are those of rows of `penstock.api`, for both wires: what is not given is None, but for names."""
NOT_ROWS = {"GetInstance"}
"""Their methods that have no row yet."""
ROW_NAMES = {
    "id", "name", "key", "definition_id", "instance_id", "ActivateVersionRequest.version", "BulkRequest.action",
}  # fmt: skip

_TOOLS = {"grpc_tools": "grpcio-tools", "ruff": "ruff"}
_MESSAGE_FIELD, _ENUM_FIELD = 4, 5  # places in a FileDescriptorProto, by which its comments are found
_DESCRIPTORS_HEAD = '''"""A google.protobuf.FileDescriptorSet of all proto files, in base 85. Generated: do not edit."""

from __future__ import annotations

'''
_HEAD = '''"""The messages of ``{package}``. Generated by tools/generate_wire.py: do not edit.

From proto/{file}, where it stands what each field means. Free-form values (``Struct``,
``Value``) are JSON text. Enums are their numbers: one that is not known is a number like any other.
"""

from __future__ import annotations

'''
_NOUNS_HEAD = '''"""The nouns that REST, gRPC, the Work stream, the engine and the SDK share: one class each.

Generated by tools/generate_wire.py: do not edit. With the fields of proto/{file} and the
numbers of the gRPC messages that it is. `noun` says what their types mean.
"""

from __future__ import annotations

'''
_SCALARS = {5: "int", 8: "bool", 9: "str", 12: "bytes", 13: "int", 14: "int"}
_ZEROS = {"int": "0", "bool": "False", "str": '""', "bytes": 'b""'}
_KINDS = {13: "UINT32"}
_TYPE_MESSAGE, _LABEL_REPEATED = 11, 3


def missing_tools() -> list[str]:
    """The packages that have to be installed first."""
    return [package for module, package in _TOOLS.items() if importlib.util.find_spec(module) is None]


def generate() -> dict[Path, str]:
    """What each generated file should hold."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    names = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    described = FileDescriptorSet.FromString(_compile(names, "--include_source_info"))
    files = {file.name: file for file in described.file}
    texts = {path: _formatted(path, "".join(_module(files[name], files))) for name, path in MODULES.items()}
    for module, nouns in _noun_modules().items():
        path = PACKAGE / "wire" / f"{module}.py"
        texts[path] = _formatted(path, "".join(_model(files, nouns)))
    served = [name for name in names if name != NOUNS_FILE]
    return {**texts, DESCRIPTORS: _descriptors(_compile(served))}


def _compile(names: list[str], *options: str) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / "descriptors.binpb"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"--descriptor_set_out={target}"]
        subprocess.run([*command, "--include_imports", *options, *names], check=True)
        return target.read_bytes()


def _descriptors(data: bytes) -> str:
    # A module, not a data file: it is there in a zip and in a frozen binary as well.
    text = base64.b85encode(data).decode()
    lines = "\n".join(f'    b"{text[at : at + 110]}"' for at in range(0, len(text), 110))
    return _DESCRIPTORS_HEAD + f"FILE_DESCRIPTOR_SET = (\n{lines}\n)\n"


def _formatted(path: Path, text: str) -> str:
    """As ruff would leave it in its place: imports that are used, in order, and the form of the house."""
    for arguments in (["check", "--select=F401,I", "--fix", "-q"], ["format", "-q"]):
        command = [sys.executable, "-m", "ruff", *arguments, f"--stdin-filename={path}", "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


# ------------------------------------------------------------------------------------------------------- one module


def _module(file: FileDescriptorProto, files: dict[str, FileDescriptorProto]) -> Iterator[str]:
    yield _HEAD.format(package=file.package, file=file.name)
    yield "from datetime import datetime\nfrom enum import IntEnum\nfrom typing import Annotated\n\n"
    yield "from msgspec import Struct, field\n\nfrom penstock.wire.codec import INT32, STRUCT, TEXT, UINT32, VALUE"
    yield "\nfrom penstock.wire.codec import Proto\n"
    for module, nouns in _noun_modules().items():
        yield f"from penstock.wire.{module} import {', '.join(nouns)}\n"
    for other in file.dependency:
        own = [name for name in _own_messages(files[other]) if other in MODULES]
        if own:
            yield f"from penstock.wire.{MODULES[other].stem} import {', '.join(own)}\n"
    yield f'\nPACKAGE = "{file.package}"\n\n\n'
    comments = {tuple(place.path): place.leading_comments.strip() for place in file.source_code_info.location}
    called = [message for message in file.message_type if f"{file.package}.{message.name}" not in _noun_of()]
    used = {field.type_name for message in called for field in message.field}
    for index, enum in enumerate(file.enum_type):
        if f".{file.package}.{enum.name}" not in used:
            continue  # of a noun, which has its words
        yield _enum(enum, f"{file.package}.{enum.name}", comments.get((_ENUM_FIELD, index), ""), prefixed=True)
    messages = {f".{file.package}.{message.name}": message for message in file.message_type}
    notes = {
        f".{file.package}.{message.name}": comments.get((_MESSAGE_FIELD, index), "")
        for index, message in enumerate(file.message_type)
    }
    services = [of for of in file.service if of.name in ROW_SERVICES]
    asked = {method.input_type for of in services for method in of.method if method.name not in NOT_ROWS}
    for name in _by_need(messages):
        if name[1:] in _noun_of():
            continue
        for enum in messages[name].enum_type:
            yield _enum(enum, f"{name[1:]}.{enum.name}", "", prefixed=False)
        yield _message(messages[name], notes[name], optional=name in asked)


def _own_messages(file: FileDescriptorProto) -> list[str]:
    """Those that are no nouns, which have modules of their own."""
    return [message.name for message in file.message_type if f"{file.package}.{message.name}" not in _noun_of()]


def _by_need(messages: dict[str, DescriptorProto]) -> Iterator[str]:
    """The messages in the file's order, but those that others hold before them."""
    given: set[str] = set()

    def give(name: str) -> Iterator[str]:
        if name in messages and name not in given:
            given.add(name)
            for field in messages[name].field:
                yield from give(field.type_name)
            yield name

    for name in messages:
        yield from give(name)


def _enum(enum: EnumDescriptorProto, full_name: str, comment: str, *, prefixed: bool) -> str:
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_" if prefixed else ""
    members = "".join(f"    {value.name.removeprefix(prefix)} = {value.number}\n" for value in enum.value)
    doc = _docstring(comment or f"``{full_name}``.")
    return f"class {CLASS_NAMES.get(enum.name, enum.name)}(IntEnum):\n{doc}\n{members}\n\n"


def _message(message: DescriptorProto, comment: str, *, optional: bool) -> str:
    fields = sorted(message.field, key=lambda field: field.number)
    lines = [
        _field(message, field, optional=optional and not ROW_NAMES & {field.name, f"{message.name}.{field.name}"})
        for field in fields
        if f"{message.name}.{field.name}" not in LEFT_OUT
    ]
    body = _docstring(comment) + "\n" * bool(comment and lines) + "".join(lines)
    return f"class {message.name}(Struct):\n" + (body or "    pass\n") + "\n\n"


def _docstring(comment: str) -> str:
    if not comment:
        return ""
    words = " ".join(line.strip() for line in comment.splitlines())
    lines = textwrap.wrap(words if words.endswith(".") else f"{words}.", 112, break_on_hyphens=False)
    closing = '"""\n' if len(lines) == 1 else '\n    """\n'
    return '    """' + "\n    ".join(lines) + closing


def _field(message: DescriptorProto, field: FieldDescriptorProto, *, optional: bool) -> str:
    kind, python_type, default = _KINDS.get(field.type, ""), _SCALARS.get(field.type, ""), ""
    if field.type == _TYPE_MESSAGE:
        python_type, kind = _message_type(message, field)
    if python_type.startswith("dict["):
        default = f"field(default_factory={python_type})"
    elif field.label == _LABEL_REPEATED:
        python_type = f"list[{python_type}]"
        default = f"field(default_factory={python_type})"
    elif (field.type == _TYPE_MESSAGE and python_type != "bytes") or field.HasField("oneof_index"):
        python_type, default = f"{python_type} | None", "None"
    elif optional and not kind and python_type in ("str", "int"):
        kind, python_type, default = {"str": "TEXT", "int": "INT32"}[python_type], f"{python_type} | None", "None"
    number = f"Proto({field.number}, {kind})" if kind else f"Proto({field.number})"
    return f"    {field.name}: Annotated[{python_type}, {number}] = {default or _ZEROS[python_type]}\n"


def _message_type(message: DescriptorProto, field: FieldDescriptorProto) -> tuple[str, str]:
    """The Python type of a field that holds messages, and its kind for the codec."""
    name = field.type_name.rpartition(".")[2]
    entry = next((nested for nested in message.nested_type if nested.name == name), None)
    if entry is not None:
        assert entry.options.map_entry
        texts = entry.field[1].type != _TYPE_MESSAGE
        return ("dict[str, str]", "") if texts else ("dict[str, bytes]", "VALUE")
    if field.type_name.startswith(".google.protobuf."):
        return {"Timestamp": ("datetime", ""), "Struct": ("bytes", "STRUCT")}[name]
    return _noun_of().get(field.type_name[1:], name), ""


# ------------------------------------------------------------------------------------------------------- the model


def _noun_of() -> dict[str, str]:
    return {message: noun for noun, messages in NOUNS.items() for message in messages}


def _noun_modules() -> dict[str, Collection[str]]:
    """The nouns of each module of `penstock.wire`."""
    apart = {noun for nouns in OWN_MODULES.values() for noun in nouns}
    return {NOUNS_MODULE.stem: [noun for noun in NOUNS if noun not in apart], **OWN_MODULES}


def _model(files: dict[str, FileDescriptorProto], nouns: Collection[str]) -> Iterator[str]:
    yield _NOUNS_HEAD.format(file=NOUNS_FILE)
    yield "from datetime import datetime\nfrom typing import Annotated, Any\n\nfrom msgspec import field\n\n"
    yield "from penstock.wire.codec import BOOL, INT32, JSON, MILLIS, OPTIONAL_BOOL, OPTIONAL_INT32, STRUCT, TEXT"
    yield "\nfrom penstock.wire.codec import WORDS, Proto\n"
    yield "from penstock.wire.noun import Answer, Flag, InstanceMethods, JsonText, Request, Seconds, Text, Variables"
    yield "\nfrom penstock.wire.noun import Texts, Whole\n"
    if "StartRequest" in nouns:
        yield f"from penstock.wire.start import {', '.join(OWN_MODULES['start'])}\n"
    if "BatchResult" in nouns:
        yield "from penstock.wire.model import Instance\n"
    yield "\n\n"
    messages = {f"{file.package}.{message.name}": message for file in files.values() for message in file.message_type}
    described = files[NOUNS_FILE]
    comments = {tuple(place.path): place.leading_comments.strip() for place in described.source_code_info.location}
    notes = {message.name: comments.get((_MESSAGE_FIELD, at), "") for at, message in enumerate(described.message_type)}
    enums = {
        (full_name := f".{file.package}.{enum.name}"): _words(enum, full_name)
        for file in files.values()
        for enum in file.enum_type
    }
    for name in _by_need({f".{described.package}.{message.name}": message for message in described.message_type}):
        message = messages[name[1:]]
        if message.name not in nouns:
            continue
        parts = {of: messages[of] for of in NOUNS[message.name]}
        base = messages.get(f"{described.package}.{EXTENDS.get(message.name, '')}")
        yield _noun(message, notes[message.name], parts, enums, base)


def _words(enum: EnumDescriptorProto, full_name: str) -> tuple[str, ...]:
    """The words of an enum by number, as JSON has them."""
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
    assert [value.number for value in enum.value] == list(range(len(enum.value)))
    words = [value.name.removeprefix(prefix) for value in enum.value[1:]]
    return ("", *(word.lower().replace("_", "-") if full_name in OTHER_WORDS else word for word in words))


def _noun(
    message: DescriptorProto,
    comment: str,
    parts: dict[str, DescriptorProto],
    enums: dict[str, tuple[str, ...]],
    extends: DescriptorProto | None,
) -> str:
    answer = message.name not in REQUESTS
    inherited = {field.name for field in extends.field} if extends else set[str]()
    lines: list[str] = []
    for field in sorted(message.field, key=lambda field: field.number):
        if field.name in inherited:
            continue
        name = PYTHON_NAMES.get(f"{message.name}.{field.name}", field.name)
        python_type, default = _noun_type(message, field, answer=answer)
        if answer and not parts and "None" not in default and f"{message.name}.{name}" not in LEFT_OUT_EMPTY:
            default = ""  # the engine always says it
        if name != field.name:
            default = f'field(default={default}, name="{field.json_name}")'
        protos = [
            _noun_proto(part.rpartition(".")[0], its, enums)
            for part, described in parts.items()
            for its in described.field
            if OTHER_NAMES.get(f"{part}.{its.name}", its.name) == field.name
        ]
        if protos:
            python_type = f"Annotated[{python_type}, {', '.join(protos)}]"
        lines.append(f"    {name}: {python_type} = {default}\n" if default else f"    {name}: {python_type}\n")
    base = extends.name if extends else METHODS.get(message.name, "Answer" if answer else "Request")
    return f"class {message.name}({base}, frozen=True):\n{_docstring(comment)}\n" + "".join(lines) + "\n\n"


def _noun_type(message: DescriptorProto, field: FieldDescriptorProto, *, answer: bool) -> tuple[str, str]:
    """The Python type of a field and its default. In answers whatever has no presence is always in the JSON."""
    name = field.type_name.rpartition(".")[2]
    plain = "" if field.type == _TYPE_MESSAGE else {1: "float", 5: "int", 8: "bool", 9: "str"}[field.type]
    if field.label == _LABEL_REPEATED and not answer:
        return "Texts", "field(default_factory=list[str])"
    if field.label == _LABEL_REPEATED:
        texts = any(entry.name == name and entry.field[1].type != _TYPE_MESSAGE for entry in message.nested_type)
        of = "str" if texts else "Any"
        made = f"dict[str, {of}]" if name.endswith("Entry") else f"list[{plain or name}]"
        if f"{message.name}.{field.name}" in LEFT_OUT_EMPTY:
            empty = "{}" if name.endswith("Entry") else "[]"
            return made, f"{empty}  # noqa: RUF012 - msgspec makes a new one each time"
        return made, f"field(default_factory={made})"
    if field.type == _TYPE_MESSAGE:
        if name == "Timestamp":
            required = not NOUNS[message.name] and not field.proto3_optional
            return ("datetime", "required") if required else ("datetime | None", "None")
        if name in NOUNS:
            return f"{name} | None", "None"
        if not answer:
            return "JsonText", "None"
        return ("Any", "None") if name == "Value" else ("Variables", "field(default_factory=dict[str, Any])")
    if field.proto3_optional:
        return "Seconds" if plain == "float" else f"{plain} | None", "None"
    if f"{message.name}.{field.name}" in LEFT_OUT_EMPTY:
        return plain, _ZEROS[plain]
    if answer:
        return plain, f"field(default_factory={plain})"
    return {"int": ("Whole", "0"), "bool": ("Flag", "False"), "str": ("Text", '""')}[plain]


def _noun_proto(package: str, field: FieldDescriptorProto, enums: dict[str, tuple[str, ...]]) -> str:
    kinds = {5: "INT32", 8: "BOOL", 9: "TEXT", 12: "JSON", 13: "MILLIS"}
    kind = kinds.get(field.type, "STRUCT" if field.type_name.endswith(".Struct") else "")
    if kind == "INT32" and field.proto3_optional:
        kind = "OPTIONAL_INT32"
    elif kind == "BOOL" and field.proto3_optional:
        kind = "OPTIONAL_BOOL"
    if field.type_name in enums:
        return f'Proto({field.number}, WORDS, "{package}", {enums[field.type_name]!r})'
    if field.label == _LABEL_REPEATED:
        kind = ""
    return f'Proto({field.number}, {kind}, "{package}")' if kind else f'Proto({field.number}, package="{package}")'


def main() -> int:
    if missing := missing_tools():
        print("missing:", ", ".join(missing), file=sys.stderr)
        return 2
    stale = {path: text for path, text in generate().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        if "--check" in sys.argv:
            print("stale:", path.relative_to(ROOT))
        else:
            path.write_text(text)
            print("written:", path.relative_to(ROOT))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
