"""Server reflection, ``grpc.reflection.v1`` and ``v1alpha``: lets grpcurl and the like call without proto files.

Serves the file descriptors that ``tools/generate_wire.py`` checked in. grpclib's own reads them from
google.protobuf's pool, which would have to be installed, and hold our messages, for nothing else.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

from grpclib.const import Handler, Status
from msgspec import Struct

from penstock.rpc.call import ServerCall
from penstock.rpc.descriptors import FILE_DESCRIPTOR_SET
from penstock.rpc.methods import both_stream
from penstock.wire.grpc_reflection import (
    ErrorResponse,
    ExtensionNumberResponse,
    FileDescriptorResponse,
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)
from penstock.wire.protobuf import BYTES, budget, read_bytes, read_tag, skip_field

_VERSIONS = ("v1", "v1alpha")

# Field numbers in google/protobuf/descriptor.proto.
_SET_FILE = 1
_FILE_NAME, _FILE_PACKAGE, _FILE_DEPENDENCY, _FILE_MESSAGE, _FILE_ENUM, _FILE_SERVICE = 1, 2, 3, 4, 5, 6
_NAME = 1
_MESSAGE_FIELD, _MESSAGE_NESTED, _MESSAGE_ENUM = 2, 3, 4
_ENUM_VALUE = 2
_SERVICE_METHOD = 2


class _File(Struct):
    data: bytes
    name: str
    dependencies: list[str]
    symbols: list[str]


class Descriptors:
    """The checked-in files, by name and by what they define."""

    def __init__(self, descriptor_set: bytes) -> None:
        files = [_read_file(data) for number, data in _parts(descriptor_set) if number == _SET_FILE]
        self._files = {file.name: file for file in files}
        self._by_symbol = {symbol: file.name for file in files for symbol in file.symbols}

    def of_symbol(self, symbol: str) -> list[bytes]:
        """The file that defines a symbol (such as ``workflow.v1.Job``) and all it needs; empty when none does."""
        return self.of_file(self._by_symbol.get(symbol, ""))

    def of_file(self, name: str) -> list[bytes]:
        """A file and all it needs, itself first; empty when there is no such file."""
        wanted, found = [name], dict[str, bytes]()
        while wanted:
            file = self._files.get(wanted.pop())
            if file is not None and file.name not in found:
                found[file.name] = file.data
                wanted += file.dependencies
        return list(found.values())

    def has_symbol(self, name: str) -> bool:
        """Something of this name is defined."""
        return name in self._by_symbol


class Reflection:
    """Both versions of the service (they differ in the package only), for a server that serves ``services``."""

    def __init__(self, services: Iterable[str]) -> None:
        self._descriptors = Descriptors(base64.b85decode(FILE_DESCRIPTOR_SET))
        self._services = sorted({*services, *(f"grpc.reflection.{version}.ServerReflection" for version in _VERSIONS)})

    def __mapping__(self) -> dict[str, Handler]:
        handler = both_stream(self._serve, ServerReflectionRequest, ServerReflectionResponse)
        return {f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo": handler for version in _VERSIONS}

    async def _serve(self, call: ServerCall[ServerReflectionRequest, ServerReflectionResponse]) -> None:
        async for request in call:
            answer = self._answer(request)
            answer.valid_host = request.host
            answer.original_request = request
            await call.send_message(answer)

    def _answer(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        if request.list_services is not None:
            names = [ServiceResponse(name) for name in self._services]
            return ServerReflectionResponse(list_services_response=ListServiceResponse(names))
        if request.file_by_filename is not None:
            return _files(self._descriptors.of_file(request.file_by_filename))
        if request.file_containing_symbol is not None:
            return _files(self._descriptors.of_symbol(request.file_containing_symbol))
        if request.all_extension_numbers_of_type is not None:
            name = request.all_extension_numbers_of_type
            if self._descriptors.has_symbol(name):
                return ServerReflectionResponse(all_extension_numbers_response=ExtensionNumberResponse(name))
            return _error(Status.NOT_FOUND, "no such message")
        if request.file_containing_extension is not None:
            return _error(Status.NOT_FOUND, "no such extension")
        return _error(Status.INVALID_ARGUMENT, "the request asks for nothing")


def _files(files: list[bytes]) -> ServerReflectionResponse:
    if not files:
        return _error(Status.NOT_FOUND, "no such file or symbol")
    return ServerReflectionResponse(file_descriptor_response=FileDescriptorResponse(files))


def _error(status: Status, message: str) -> ServerReflectionResponse:
    return ServerReflectionResponse(error_response=ErrorResponse(status.value, message))


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields with a length, by number; descriptors have no others that matter here."""
    pos = 0
    while pos < len(data):
        tag, pos = read_tag(data, pos)
        if tag & 7 == BYTES:
            part, pos = read_bytes(data, pos)
            yield tag >> 3, part
        else:
            pos = skip_field(data, pos, tag, 1)


def _read_file(data: bytes) -> _File:
    budget.begin()
    parts = list(_parts(data))
    package = next((part.decode() for number, part in parts if number == _FILE_PACKAGE), "")
    symbols: list[str] = []
    for number, part in parts:
        if number == _FILE_MESSAGE:
            symbols += _message_symbols(package, part)
        elif number in (_FILE_ENUM, _FILE_SERVICE):
            symbols += _member_symbols(package, part, _ENUM_VALUE if number == _FILE_ENUM else _SERVICE_METHOD)
    return _File(
        data,
        next(part.decode() for number, part in parts if number == _FILE_NAME),
        [part.decode() for number, part in parts if number == _FILE_DEPENDENCY],
        symbols,
    )


def _message_symbols(scope: str, data: bytes) -> list[str]:
    parts = list(_parts(data))
    symbols = _member_symbols(scope, data, _MESSAGE_FIELD)
    for number, part in parts:
        if number == _MESSAGE_NESTED:
            symbols += _message_symbols(symbols[0], part)
        elif number == _MESSAGE_ENUM:
            symbols += _member_symbols(symbols[0], part, _ENUM_VALUE)
    return symbols


def _member_symbols(scope: str, data: bytes, members: int) -> list[str]:
    """Return the thing's own full name first, then those of its members."""
    parts = list(_parts(data))
    name = f"{scope}.{_name(data)}"
    return [name, *(f"{name}.{_name(part)}" for number, part in parts if number == members)]


def _name(data: bytes) -> str:
    return next(part.decode() for number, part in _parts(data) if number == _NAME)
