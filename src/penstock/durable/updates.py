"""Updates in workflow functions: `@update`, its validator, and what is recorded of an answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload

import msgspec

from penstock.durable.codec import decode, encode
from penstock.durable.errors import NotInWorkflow, PayloadTooLarge, Unencodable
from penstock.durable.failure import describe
from penstock.durable.given import check_name, wrong
from penstock.durable.signature import Parameters, where_of
from penstock.kernel.current import current_branch
from penstock.kernel.errors import CallRefusal, Cancelled
from penstock.kernel.operation import Outcome
from penstock.log.masking import mask_text
from penstock.user_text import text_of

_GIVEN: Final = list[msgspec.Raw] | dict[str, msgspec.Raw]
P = ParamSpec("P")
R = TypeVar("R")


class HandlerError(msgspec.Struct, frozen=True, rename="camel"):
    """The error of a handler: its class and its text, with the place."""

    type_name: str
    message: str


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is recorded of a call: one of the three. ``refused`` is the reason."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: HandlerError | None = None
    refused: str | None = None


def answer_of(name: str, outcome: Outcome, max_bytes: int) -> str:
    """Return the JSON of an answer."""
    error = outcome.error
    if error is None:
        try:
            value = encode(outcome.value, f"the answer of update {name}", max_bytes)
        except (Unencodable, PayloadTooLarge) as refused:
            error = refused
        else:
            return msgspec.json.encode(Answer(msgspec.Raw(value.encode()))).decode()
    if isinstance(error, CallRefusal):
        return refusal_of(str(error))
    text = "the run was cancelled" if isinstance(error, Cancelled) else mask_text(describe(error))
    return msgspec.json.encode(Answer(error=HandlerError(type(error).__name__, text))).decode()


def refusal_of(reason: str) -> str:
    """Return the JSON of the answer of a call that was refused."""
    return msgspec.json.encode(Answer(refused=reason)).decode()


class Update(Generic[P, R]):
    """Made by `update`: the handler of calls with its name, in the run whose function has made it."""

    def __init__(self, function: Callable[P, R], name: str) -> None:
        check_name("the name of an update", name)
        given: object = function
        if not inspect.isroutine(given) or inspect.isgeneratorfunction(given):
            raise TypeError(wrong("what @update decorates", given, "a def or an async def in the workflow function"))
        self.name, self.function = name, function
        self._parameters = Parameters(function)
        self._validator: Callable[..., object] | None = None
        self.__name__, self.__doc__ = name, function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the function itself, for the workflow function to call."""
        return self.function(*args, **kwargs)

    def validator(self, function: Callable[P, object]) -> Callable[P, object]:
        """Make a function the check of each call, before anything of it is recorded: it gets the arguments, and raises
        an error to refuse the call. It must change nothing, and await nothing.

        Raises:
            TypeError: it is an ``async def``, or is no function.
        """
        given: object = function
        if not callable(given) or inspect.iscoroutinefunction(given):
            raise TypeError(wrong(f"the validator of update {self.name!r}", given, "a def, as it must not await"))
        self._validator = function
        return function

    def bind(self, arguments: str, *, check: bool) -> Callable[[], R]:
        """Return what is to be called. Its arguments are JSON: a list or an object. Raises `Refusal`."""
        parameters = self._parameters
        names = list(parameters.signature.parameters)
        try:
            found: list[msgspec.Raw] | dict[str, msgspec.Raw] = decode(arguments, _GIVEN)
            if isinstance(found, list) and len(found) > len(names):
                raise ValueError(f"{len(found)} are given")
            given = dict(zip(names, found, strict=False)) if isinstance(found, list) else found
            if unknown := [name for name in given if name not in names]:
                raise ValueError(f"{unknown[0]}: it has no such parameter")
            args, kwargs = parameters.arguments(msgspec.json.encode(given).decode())
            parameters.signature.bind(*args, **kwargs)
        except (ValueError, TypeError) as error:
            takes = f"{self.name}{parameters.signature.replace(return_annotation=inspect.Signature.empty)}"
            raise CallRefusal(f"arguments: {error}. It takes {takes}") from None
        if check and self._validator is not None:
            try:
                self._validator(*args, **kwargs)
            except Exception as error:
                raise CallRefusal(text_of(error) or type(error).__name__) from None
        return partial(self.function, *args, **kwargs)


@overload
def update(function: Callable[P, R], /) -> Update[P, R]: ...
@overload
def update(*, name: str | None = None) -> Callable[[Callable[P, R]], Update[P, R]]: ...
def update(function: Any = None, /, *, name: str | None = None) -> Any:
    """Make a function inside of a workflow function the handler of an update: ``@update``, or ``@update(name="…")``.

    ``await run.ask("set_limit", 5)`` calls it from another program, and gets what it returns. Calls that came before it
    was made are kept for it. Each call runs in a branch of its own, and may await what the workflow function may. The
    run ends when the function and the calls that have begun have ended. If the function raises, they are cancelled.

    Args:
        function: a ``def`` or an ``async def``. Arguments are checked by its annotations.
        name: by which it is called, the function's by default.

    Raises:
        NotInWorkflow: it is not made in a workflow function.
        TypeError: it is no function, or has a type of which no value can be kept.
        ValueError: the run has an update of that name already.
    """

    def decorate(function: Callable[..., Any]) -> Update[..., Any]:
        branch = current_branch()
        if branch is None:
            raise NotInWorkflow(f"@update ({where_of(function)}) belongs into the body of a workflow function")
        made = Update(function, getattr(function, "__name__", "") if name is None else name)
        branch.kernel.need_updates().register(made.name, made.bind)
        return made

    return decorate if function is None else decorate(function)
