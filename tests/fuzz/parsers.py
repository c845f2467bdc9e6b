"""What reads input that anybody may send: each takes any bytes, and answers or refuses."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from penstock.core.expression import ExpressionError, parse
from penstock.core.graph.definition import InvalidDefinition
from penstock.core.parsing.parsing import parse_definition
from penstock.engine.requests.payload import PayloadLimits, check_variables
from penstock.errors import BadRequest, PayloadTooLarge
from penstock.http.limits import HttpLimits
from penstock.http.parser import RequestParser
from penstock.http.refusal import Refusal
from penstock.http.request import BodyBudget
from penstock.rpc import limits as rpc_limits
from penstock.rpc.request import read_request
from penstock.rpc.sending import open_http2
from penstock.wire.codec import decode_message
from penstock.wire.http2_frames import ProtocolError
from penstock.wire.protobuf import DecodeError


def cut(text: bytes, size: int = 9) -> list[bytes]:
    """An input in pieces."""
    return [text[at : at + size] for at in range(0, len(text), size)]


def http(data: bytes, size: int) -> None:
    """Requests that come in pieces of a size."""
    parser = RequestParser(HttpLimits(), BodyBudget(1_000_000))
    with contextlib.suppress(Refusal):
        for piece in cut(data, size):
            parser.receive(piece)
            while parser.next_request() is not None:
                parser.release()
    parser.close()


def http2(data: bytes, size: int) -> None:
    """Frames that come in pieces of a size, the preface first."""
    connection = open_http2(rpc_limits.RpcLimits(), partial(read_request, {}))
    with contextlib.suppress(ProtocolError):
        for piece in cut(data, size):
            connection.receive(piece)
            connection.data_to_send()


def message(body: bytes, kind: type[Any], package: str) -> None:
    """A protobuf message."""
    with contextlib.suppress(DecodeError):
        decode_message(body, kind, package)


def expression(text: str) -> None:
    """An expression of a definition."""
    with contextlib.suppress(ExpressionError):
        parse(text)


def definition(text: bytes) -> None:
    """An uploaded definition."""
    with contextlib.suppress(InvalidDefinition, PayloadTooLarge):
        parse_definition(text)


def variables(raw: bytes) -> None:
    """Variables as they come in a request."""
    with contextlib.suppress(BadRequest, PayloadTooLarge):
        check_variables(raw, PayloadLimits())
