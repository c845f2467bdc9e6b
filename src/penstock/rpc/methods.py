"""Methods: grpclib's ``Handler`` entries made of plain async functions, and the typed form that the server runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from grpclib.const import Cardinality, Handler
from msgspec import Struct

from penstock.wire.codec import package_at

if TYPE_CHECKING:
    from penstock.rpc.call import ServerCall

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")
RunT = TypeVar("RunT", bound=Callable[..., Any])
_TASKLESS: Final = "__penstock_taskless__"
_INLINE: Final = "__penstock_hot__"


class Method(Struct, frozen=True):
    """A ``grpclib.const.Handler`` with types: that one is a bare named tuple, and its cardinality an enum of tuples."""

    path: str
    run: Callable[[Any], Awaitable[None]]
    client_streaming: bool
    server_streaming: bool
    request_type: Any
    answer_type: Any
    package: str
    taskless: bool = False
    """It waits for items of group-commit queues only, or says `need_task` before it waits for anything else."""
    begin: Callable[[Any], bool] | None = None
    """Begins most of its calls without a coroutine; ``run`` has the others (False)."""

    @classmethod
    def of(cls, path: str, handler: Handler) -> Method:
        """From grpclib's form."""
        run, cardinality, request_type, answer_type = cast("tuple[Any, ...]", handler)
        client_streaming, server_streaming = cast("tuple[bool, bool]", cardinality.value)
        taskless = getattr(run, _TASKLESS, False) and not (client_streaming or server_streaming)
        package = package_at(path)
        begin = getattr(run, _INLINE, None) if taskless else None
        return cls(path, run, client_streaming, server_streaming, request_type, answer_type, package, taskless, begin)


def taskless(run: RunT) -> RunT:
    """Mark what serves a unary call: see `Method.taskless`."""
    setattr(run, _TASKLESS, True)
    return run


def inline(handler: Handler, begin: Callable[[Any], bool]) -> Handler:
    """Of a method without a task: see `Method.begin`."""
    inner = cast("tuple[Any, ...]", handler)[0]

    async def run(call: ServerCall[Any, Any]) -> None:
        await inner(call)

    setattr(run, _INLINE, begin)
    return handler._replace(func=taskless(run))


def unary(
    serve: Callable[[RequestT, ServerCall[RequestT, AnswerT]], Awaitable[AnswerT]],
    request_type: type[RequestT],
    answer_type: type[AnswerT],
) -> Handler:
    """Return one request, one answer. The call is handed in for its deadline, headers and peer."""

    async def run(call: ServerCall[RequestT, AnswerT]) -> None:
        request = await call.recv_message()
        assert request is not None  # ServerCall raises before it returns None for a single request
        await call.send_message(await serve(request, call))

    if getattr(serve, _TASKLESS, False):
        taskless(run)
    return Handler(run, Cardinality.UNARY_UNARY, request_type, answer_type)


def answers_stream(
    serve: Callable[[ServerCall[RequestT, AnswerT]], Awaitable[None]],
    request_type: type[RequestT],
    answer_type: type[AnswerT],
) -> Handler:
    """Return one request, any number of answers: ``serve`` reads and writes the call itself."""
    return Handler(serve, Cardinality.UNARY_STREAM, request_type, answer_type)


def both_stream(
    serve: Callable[[ServerCall[RequestT, AnswerT]], Awaitable[None]],
    request_type: type[RequestT],
    answer_type: type[AnswerT],
) -> Handler:
    """Any number of requests and answers: ``serve`` reads and writes the call itself."""
    return Handler(serve, Cardinality.STREAM_STREAM, request_type, answer_type)


def service_names(paths: Iterable[str]) -> set[str]:
    """The services in paths such as ``/package.Service/Method`` (a ``__mapping__`` has them as keys)."""
    return {path.split("/")[1] for path in paths}
