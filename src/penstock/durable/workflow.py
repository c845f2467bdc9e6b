"""Workflows: the bodies that are driven by the kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import msgspec

from penstock.durable.codec import PAYLOAD_MAX_BYTES, NotKept, decode, decode_kept, encode, shown
from penstock.durable.duration import Duration, seconds_of
from penstock.durable.errors import BadDuration, Unencodable
from penstock.durable.given import check_int, check_name, seconds_given, wrong
from penstock.durable.in_code import Queue, queue_in, schedule_in, text_of_body
from penstock.durable.kept import SCALARS
from penstock.durable.origin import origin_of
from penstock.durable.signature import Parameters, name_of, plain_function, refuse_method, where_of
from penstock.kernel.current import current_branch
from penstock.kernel.record import RULES
from penstock.user_text import repr_of
from penstock.wire.schedule import ScheduleSpec

P = ParamSpec("P")
R = TypeVar("R")
VERSION_MAX = 2**31 - 1
DEADLINE = "$deadline_s"
"""Among the arguments of a run, as no parameter is called so: how many seconds after its start it is cancelled."""


class Workflow(Generic[P, R]):
    """A durable workflow, made by `workflow`.

    Attributes:
        name: its name, the function's by default.
        version: a part of what a run is: runs of another version need code of that version.
        queue: the name of the queue whose policy says when its runs are active; None for none.
        queue_policy: the limits of that queue, where the code has them.
        schedule: what starts it by the clock, where the code has it.
    """

    def __init__(
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        name: str,
        version: int,
        queue: str | Queue | None = None,
        schedule: str | ScheduleSpec | None = None,
    ) -> None:
        plain, self._is_static = plain_function(function, "workflow")
        function = cast("Callable[P, Coroutine[Any, Any, R]]", plain)
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{shown(repr_of(name))} is not an async def: a workflow function awaits its steps")
        own = f'; as its function is called otherwise, write @workflow(name="…") above it ({where_of(function)})'
        instead = own if name == function.__name__ else ""
        check_name("the name of a workflow", name, instead=instead)
        check_int("version", version, 1, VERSION_MAX)
        self.function, self.name, self.version = function, name, version
        self.queue, self.queue_policy = queue_in(queue)
        self.schedule = schedule_in(schedule)
        self.parameters = Parameters(function)
        self._check_schedule()
        self.__name__, self.__doc__, self.__module__ = name, function.__doc__, function.__module__
        self.__wrapped__ = function
        self.origin = origin_of(function)
        self.where = where_of(function)

    def schedule_text(self) -> bytes:
        """Return its schedule as JSON, empty without one. Raises as `encode_arguments` does, of its arguments."""
        if self.schedule is None or not self.schedule.variables:
            return text_of_body(self.schedule)
        text = self._encode_arguments(self._check_schedule(), PAYLOAD_MAX_BYTES)
        return text_of_body(msgspec.structs.replace(self.schedule, variables=msgspec.Raw(text.encode())))

    def _check_schedule(self) -> dict[str, Any]:
        """Return the arguments that its schedule gives. It may leave out some: the engine gives `schedule`."""
        given = dict(self.schedule.variables or {}) if self.schedule is not None else {}
        try:
            return dict(self.parameters.signature.bind_partial(**given).arguments)
        except TypeError as error:
            raise TypeError(f"schedule: variables: {self.name} does not take them: {error}") from None

    def policy_text(self) -> bytes:
        """Return the limits of its queue as JSON, empty without any."""
        return text_of_body(self.queue_policy)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Return the function itself: part of the body that awaits it, not a run of its own."""
        return self.function(*args, **kwargs)

    def __set_name__(self, owner: type, name: str) -> None:
        if not self._is_static:
            refuse_method(self.function, owner, "workflow")

    def encode_arguments(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        deadline: Duration | None = None,
        max_bytes: int = PAYLOAD_MAX_BYTES,
    ) -> str:
        """Encode arguments as JSON by parameter name.

        Raises:
            TypeError: the function does not take them. Unencodable, PayloadTooLarge, BadDuration: a value can't be
            kept.
        """
        bound = self.parameters.bound(args, kwargs)
        if deadline is not None:
            bound[DEADLINE] = seconds_given("deadline", deadline)
        return self._encode_arguments(bound, max_bytes)

    def _encode_arguments(self, bound: dict[str, Any], max_bytes: int) -> str:
        text = encode(bound, f"the arguments of {self.name}", max_bytes)
        branch = current_branch()
        try:
            if branch is None or branch.kernel.rules:
                bound.pop(DEADLINE, None)
                self.parameters.check_kept(bound, text)
            else:  # before, it went on with what came back
                self.parameters.arguments(text)
        except NotKept as error:
            raise Unencodable(f"{self.name} would not get these arguments as they are: {error}") from None
        except ValueError as error:
            raise TypeError(f"{self.name} does not take these arguments: {error}") from None
        return text

    def encode_result(self, value: object, max_bytes: int = PAYLOAD_MAX_BYTES, *, rules: int = RULES) -> str:
        """JSON that comes back as what the function gave. ``rules``: of the record after which it ended; by those of
        before, another value might come back. Raises `Unencodable`, `PayloadTooLarge`."""
        text = encode(value, f"the result of {self.name}", max_bytes)
        type_ = self.parameters.result_type()
        if type(value) in SCALARS and type_ is type(value):
            return text
        try:
            if rules:
                decode_kept(text, type_, value)
            else:
                decode(text, type_)
        except NotKept as error:
            raise Unencodable(f"the result of {self.name} would not come back as it is: {error}") from None
        except ValueError as error:
            name = getattr(type_, "__name__", type_)
            raise Unencodable(
                f"the result of {self.name} is {shown(text)} which does not fit {name}: {error}"
            ) from None
        return text

    def body(self, arguments: str) -> Coroutine[Any, Any, R]:
        """Make the coroutine of a run from its stored arguments. Raises `ValueError` with the field and the reason."""
        function: Callable[..., Coroutine[Any, Any, R]] = self.function
        args, kwargs = self.parameters.arguments(arguments)
        return function(*args, **kwargs)


def check_workflow(given: object) -> None:
    """Raises TypeError for what is none, such as a name."""
    if not isinstance(given, Workflow):
        raise TypeError(f"pass the @workflow function itself, not {shown(repr_of(given))}")


def workflow_in(
    given: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Workflow[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The workflow and its arguments, of which a `functools.partial` around it may have some. Raises TypeError."""
    if isinstance(given, partial):
        applied: partial[Any] = given  # pyright: ignore[reportUnknownVariableType] - isinstance leaves it open
        given, args, kwargs = applied.func, (*applied.args, *args), {**applied.keywords, **kwargs}
    check_workflow(given)
    return cast("Workflow[..., Any]", given), args, kwargs


def deadline_s(arguments: str) -> float:
    """Of a run with these arguments: seconds after its start. Raises `ValueError`."""
    if DEADLINE not in arguments:
        return inf
    found = decode(arguments, dict[str, Any]).get(DEADLINE)
    try:
        return inf if found is None else seconds_of(found)
    except BadDuration as error:
        raise ValueError(f"{DEADLINE}: {error}") from None


@overload
def workflow(function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: int = 1,
    queue: str | Queue | None = None,
    schedule: str | ScheduleSpec | None = None,
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Workflow[P, R]]: ...
def workflow(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    queue: str | Queue | None = None,
    schedule: str | ScheduleSpec | None = None,
) -> Any:
    """Make an ``async def`` a workflow: ``@workflow``, or with options ``@workflow(version=2)``.

    Args:
        function: the function. It awaits steps and what `penstock.durable` has.
        name: its name in the database, the function's by default. Runs that are open are found by it: keep it when you
            rename the function.
        version: 1 by default. A run goes on with code of the version that it began with.
        queue: the queue whose limits say when runs become active (docs/queues.md); a run that waits is not. With a
            `Queue` its limits are put as an App connects. By default none: at once.
        schedule: a cron expression in UTC, as ``"0 8 * * mon"``, or a `ScheduleSpec`, by which runs are started. It is
            put as an App connects, and has the workflow's name (docs/schedules.md). None by default.

    Raises:
        TypeError: it is no ``async def``, is a method, or has a type of which no value can be kept.
        ValueError: an option has a value that it can't have.
    """

    given: object = function
    if given is not None and not callable(given) and not isinstance(given, (staticmethod, classmethod)):
        raise TypeError(wrong("what @workflow decorates", given, 'an async def; a name is given by name="…"'))

    def decorate(function: Callable[..., Coroutine[Any, Any, Any]]) -> Workflow[..., Any]:
        return Workflow(function, name_of(function, "workflow") if name is None else name, version, queue, schedule)

    return decorate if function is None else decorate(function)
