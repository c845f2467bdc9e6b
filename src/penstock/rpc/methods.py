"""Makes ``grpclib.const.Handler`` entries out of plain async functions, for a service's ``__mapping__``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from grpclib.const import Cardinality, Handler

from penstock.rpc.call import Call

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


def unary(
    serve: Callable[[RequestT, Call[RequestT, AnswerT]], Awaitable[AnswerT]],
    request_type: type[RequestT],
    answer_type: type[AnswerT],
) -> Handler:
    """One request, one answer. The call is handed in for its deadline, headers and peer."""

    async def run(call: Call[RequestT, AnswerT]) -> None:
        request = await call.recv_message()
        assert request is not None  # Call raises before it returns None for a single request
        await call.send_message(await serve(request, call))

    return Handler(run, Cardinality.UNARY_UNARY, request_type, answer_type)


def answers_stream(
    serve: Callable[[Call[RequestT, AnswerT]], Awaitable[None]],
    request_type: type[RequestT],
    answer_type: type[AnswerT],
) -> Handler:
    """One request, any number of answers: ``serve`` reads and writes the call itself."""
    return Handler(serve, Cardinality.UNARY_STREAM, request_type, answer_type)


def both_stream(
    serve: Callable[[Call[RequestT, AnswerT]], Awaitable[None]],
    request_type: type[RequestT],
    answer_type: type[AnswerT],
) -> Handler:
    """Any number of requests and answers: ``serve`` reads and writes the call itself."""
    return Handler(serve, Cardinality.STREAM_STREAM, request_type, answer_type)


def service_names(mapping: dict[str, Any]) -> set[str]:
    """The services in a mapping from ``/package.Service/Method``."""
    return {path.split("/")[1] for path in mapping}
