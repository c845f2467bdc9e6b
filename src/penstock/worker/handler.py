"""Handlers: what a registered function takes and returns, found out once at registration, and how to call it.

A mistake in a signature is a TypeError at registration, never a surprise at the first job. Decides and calls;
leases, limits and reports are the business of `execution.py` and `session.py`.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from penstock.client.encoding import to_json_object
from penstock.client.errors import BadRequest
from penstock.user_text import text_of
from penstock.wire.model import Job
from penstock.wire.noun import Variables
from penstock.worker.checkpoint import MAX_CHECKPOINT_FORMAT
from penstock.worker.context import JobContext
from penstock.worker.errors import NonRetryable
from penstock.worker.process_pool import ProcessPool

HandlerFunction = Callable[..., Any]
Argument = Callable[[JobContext], Any]

# What an unannotated parameter may be called to get the context; any other name gets the variables.
CONTEXT_NAMES = frozenset({"context", "ctx", "job"})


_NO_VARIABLES: typing.Final = frozenset({int, float, str, bytes, bool, list, tuple, set, frozenset})


class Pools(typing.NamedTuple):
    """How many handlers may run in threads and in processes at once, over all job types."""

    threads: anyio.CapacityLimiter
    processes: ProcessPool


class Handler:
    """A function registered for a job type.

    Args:
        job_type: the type of the jobs it takes.
        function: async or sync; takes a ``JobContext``, the ``Job`` and/or the variables, in any order, or nothing.
        concurrency: how many of these jobs run at once, at most; None leaves it to the worker's own limit.
        timeout_s: time limit of one attempt in seconds; None sets none.
        in_process: run it in another process instead of a thread; the function must be importable there.
        checkpoint_format: the version of the format of its checkpoints; None stores and reads them as they are.
        names: local names of the place of registration, to resolve annotations that are text.

    Raises:
        TypeError: the function's signature is not one that a handler can have; ``checkpoint_format`` is no whole
            number.
        ValueError: ``concurrency`` or ``timeout_s`` is below its least, or ``checkpoint_format`` out of its range.
    """

    def __init__(
        self,
        job_type: str,
        function: HandlerFunction,
        *,
        concurrency: int | None = None,
        timeout_s: float | None = None,
        in_process: bool = False,
        checkpoint_format: int | None = None,
        names: Mapping[str, Any] | None = None,
    ) -> None:
        if not job_type:
            raise ValueError("job_type: must not be empty")
        if not callable(function):
            raise TypeError(f"the handler for {job_type!r} is not a function: {function!r}")
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"the handler for {job_type!r}: concurrency must be at least 1, not {concurrency}")
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"the handler for {job_type!r}: timeout_s must be more than 0, not {timeout_s}")
        if checkpoint_format is not None:
            _check_checkpoint_format(job_type, checkpoint_format)
        self.job_type = job_type
        self.concurrency = concurrency
        self.timeout_s = timeout_s
        self.checkpoint_format = checkpoint_format
        self._function = function
        self._arguments = _arguments_of(job_type, function, names or {})
        self.is_async = _is_async(function)
        self._in_process = in_process
        if in_process:
            self._check_for_process()

    async def __call__(self, context: JobContext, pools: Pools) -> msgspec.Raw | None:
        """Run the function; the JSON of what it returns, None when that is nothing.

        Raises:
            NonRetryable: the variables do not fit, or what it returned is no JSON object.
            Exception: whatever the function raises.
        """
        arguments = [argument(context) for argument in self._arguments]
        if self.is_async:
            result = await _in_own_task(self._function, arguments)
        elif self._in_process:
            result = await pools.processes.run(self._function, arguments)
        else:
            call = functools.partial(_caught, self._function, arguments)
            result, error = await anyio.to_thread.run_sync(call, limiter=pools.threads)
            if error is not None:
                raise error
        if result is None:
            return None
        try:
            return msgspec.Raw(to_json_object(result))
        except BadRequest as error:
            raise NonRetryable(f"the handler returned what can't be stored as variables: {error.reason}") from error

    def _check_for_process(self) -> None:
        where = f"the handler for {self.job_type!r}"
        if self.is_async:
            raise TypeError(f"{where} is async: only a plain function can run in a process of its own")
        if _context in self._arguments:
            raise TypeError(f"{where} takes a JobContext, which can't go to another process: take the Job instead")
        if {"<locals>", "<lambda>"} & set(getattr(self._function, "__qualname__", "").split(".")):
            raise TypeError(f"{where} is a local function: another process can't import it")


def _check_checkpoint_format(job_type: str, value: object) -> None:
    problem = (
        f"the handler for {job_type!r}: checkpoint_format must be a whole number from 1 to {MAX_CHECKPOINT_FORMAT}, "
        f"not {value!r}"
    )
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(problem)
    if not 1 <= value <= MAX_CHECKPOINT_FORMAT:
        raise ValueError(problem)


def _caught(function: HandlerFunction, arguments: Sequence[Any]) -> tuple[Any, BaseException | None]:
    """What a function gives in a thread, or raises: some exceptions (GeneratorExit) are none that a loop lets through
    to whoever waits for a thread."""
    try:
        return function(*arguments), None
    except BaseException as error:
        return None, error


async def _in_own_task(function: HandlerFunction, arguments: Sequence[Any]) -> Any:
    """Return what an async function returns, or raise what it raises.

    It has a task of its own, which ends with it: a cancel scope or a task group that it leaves open, or a cancel of
    its own task, would strike whatever the worker does next in this one.

    Raises:
        RuntimeError: it left a cancel scope or a task group open.
    """
    result: Any = None
    error: BaseException | None = None
    ended = False

    async def run() -> None:
        nonlocal result, error, ended
        with anyio.CancelScope():  # cancelled by nobody: its end raises where something is left open within
            try:
                result = await function(*arguments)
            except BaseException as raised:
                error = raised
            ended = True

    try:
        async with anyio.create_task_group() as own:
            own.start_soon(run)
    except anyio.get_cancelled_exc_class():
        if not ended:
            raise
        # asyncio cancels this task, too, which only waited: the function has gone on to its end, and that counts.
    except BaseExceptionGroup as group:
        left_open, others = group.split(RuntimeError)
        if not ended or left_open is None or others is not None:
            raise
        if error is None:
            error = RuntimeError("the handler left a cancel scope or a task group open: use `with` or `async with`")
            error.__cause__ = left_open
    if error is not None:
        raise error
    return result


def _is_async(function: HandlerFunction) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - the method itself is looked at


def _arguments_of(job_type: str, function: HandlerFunction, names: Mapping[str, Any]) -> Sequence[Argument]:
    """How to make each positional argument from the context."""
    where = f"the handler for {job_type!r}"
    hints = _hints_of(where, function, names)
    _check_result(where, hints.get("return"))
    arguments: list[Argument] = []
    variables_taken = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                raise TypeError(f"{where} has a keyword-only parameter {parameter.name!r} without a default")
            continue
        hint = hints.get(parameter.name, parameter.empty)
        if hint is JobContext or (hint is parameter.empty and parameter.name in CONTEXT_NAMES):
            arguments.append(_context)
        elif hint is Job:
            arguments.append(_job)
        elif not variables_taken:
            variables_taken = True
            arguments.append(_variables_as(where, hint))
        elif parameter.default is parameter.empty:
            raise TypeError(
                f"{where} takes a JobContext and the variables, but has another parameter {parameter.name!r}"
            )
    return arguments


def _check_result(where: str, hint: Any) -> None:
    """A result is variables, by their names: what can be none is refused here and not at the first job."""
    for each in typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,):
        if (typing.get_origin(each) or each) in _NO_VARIABLES:
            name = each.__name__ if isinstance(each, type) else each
            raise TypeError(f"{where} returns {name}: it has to return variables (a dict or a model), or None")


def _hints_of(where: str, function: HandlerFunction, names: Mapping[str, Any]) -> dict[str, Any]:
    annotated: Any = function
    while isinstance(annotated, functools.partial):
        annotated = annotated.func
    if not inspect.isroutine(annotated):  # an object with __call__
        annotated = annotated.__call__
    try:
        return typing.get_type_hints(annotated, localns=dict(names))
    except NameError as error:
        hint = "define it in the module, or in the same function as the registration"
        raise TypeError(f"{where} has an annotation that can't be resolved: {error}; {hint}") from error


def _context(context: JobContext) -> JobContext:
    return context


def _job(context: JobContext) -> Job:
    return context.job


def _plain_variables(context: JobContext) -> Variables:
    return context.variables


def _variables_as(where: str, hint: Any) -> Argument:
    """Makes the variables argument: as a plain dict, or validated against what the annotation says."""
    if hint in (inspect.Parameter.empty, Any, object, dict) or typing.get_origin(hint) in (dict, Mapping):
        return _plain_variables
    if hasattr(hint, "model_validate"):  # a pydantic model; pydantic is not a dependency
        validate: Callable[[Variables], Any] = hint.model_validate
    else:
        try:
            msgspec.json.Decoder(hint)
        except TypeError as error:
            raise TypeError(f"{where} takes variables as {hint!r}, which can't be validated: {error}") from error
        validate = functools.partial(msgspec.convert, type=hint)

    def argument(context: JobContext) -> Any:
        try:
            return validate(context.variables)
        except ValueError as error:  # msgspec.ValidationError and pydantic.ValidationError are both
            raise NonRetryable(f"the variables do not fit {_name_of(hint)}: {text_of(error)}") from error

    return argument


def _name_of(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)
