"""Steps: the functions of a workflow that do something in the world. Called in a body, their outcome is a record."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from functools import partial
from types import CoroutineType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from penstock.durable.codec import NotKept, decode_kept, digest_of, encode, former_digest_of, shown
from penstock.durable.duration import Duration
from penstock.durable.errors import NotInWorkflow, SendRefused, StartRefused, Unencodable
from penstock.durable.given import check_database, check_flag, check_int, check_text, seconds_given, wrong
from penstock.durable.kept import SCALARS, class_of
from penstock.durable.recorded_error import decode_error, encode_error
from penstock.durable.signature import Parameters, name_of, plain_function, refuse_method, where_of
from penstock.kernel.current import current_branch
from penstock.kernel.errors import Cancelled, Undecodable
from penstock.kernel.operation import CallOperation, Outcome, block
from penstock.kernel.record import JournalKind, Record
from penstock.kernel.unawaited import Unawaited
from penstock.user_text import repr_of

P = ParamSpec("P")
R = TypeVar("R")
MAX_NAME_CHARS = 256
PROGRESS_MAX_BYTES = 4_096


class StepOptions(msgspec.Struct, frozen=True):
    """How often and how long a step is tried. None of it is identity: it may change between deploys.

    ``first_s`` is the pause before the first retry; it doubles up to ``cap_s``. ``timeout_s`` bounds an attempt,
    ``within_s`` all of them together. ``abandon``: of a thread that is cancelled the end is not waited for.
    """

    retries: int = 0
    first_s: float = 1.0
    cap_s: float = 60.0
    timeout_s: float | None = None
    within_s: float | None = None
    raises: tuple[type[BaseException], ...] = ()
    abandon: bool = False

    def pause_s(self, failed: int) -> float:
        """Before the next attempt, when so many have failed."""
        return min(self.cap_s, self.first_s * 2.0 ** min(failed - 1, 64))


class Progress(Protocol):
    """Who keeps what a step says of itself while it runs."""

    progress: str | None


class StepInfo(msgspec.Struct, frozen=True, gc=False):
    """What a step can know of itself. `step_info` returns it.

    Attributes:
        key: is the same in each attempt: give it to the systems that you call.
        attempt: which attempt this is, from 1.
        run_id: the run's id.
        epoch: grows whenever another process gets the run. Write it with what the step does, and refuse smaller ones:
        this
            keeps out a process that was taken for dead and is not.
    """

    key: str
    attempt: int
    run_id: str
    epoch: int = 1
    kept_by: Progress | None = None

    def heartbeat(self, progress: object) -> None:
        """Show how far the step is, in the run's tree. You may call it from threads, too.

        Nothing depends on it: a step without heartbeats keeps its run all the same.

        Args:
            progress: any value with a JSON form of at most 4 kB.
        """
        text = encode(progress, "the progress of a step", PROGRESS_MAX_BYTES)
        if self.kept_by is not None:
            self.kept_by.progress = text


current_step: ContextVar[StepInfo] = ContextVar("current_step")


current_transaction: ContextVar[Callable[[StepCall, StepInfo, Any], Awaitable[Outcome]]] = ContextVar(
    "current_transaction"
)
"""Runs a step that is a transaction, in a thread of the limiter that it is given."""


class Sender(Protocol):
    """Sends a message to any run: `Backend.send`."""

    def __call__(
        self, run_id: str, name: str, payload: str, dedup: str, *, sender: str, force: bool
    ) -> Awaitable[None]: ...


current_sender: ContextVar[Sender] = ContextVar("current_sender")
"""Delivers a message for a step of `send`: to which run, its name, JSON, and what makes a second one the same one."""


current_starter: ContextVar[Callable[[str, int, str, str], Awaitable[str]]] = ContextVar("current_starter")
"""Starts a run for a step of `start`: name and version of its workflow, arguments (JSON), id; gives its instance's."""


def step_info() -> StepInfo:
    """Return the key, attempt and run of the step that calls this.

    Raises:
        NotInWorkflow: no step calls it.
    """
    try:
        return current_step.get()
    except LookupError:
        raise NotInWorkflow("step_info() is for steps that a workflow called") from None


class StepCall:
    """One call of a step, as the kernel and an executor see it. ``arguments`` is JSON by parameter name."""

    __slots__ = ("arguments", "digest", "name", "options", "step")

    def __init__(self, step: Step[Any, Any], name: str, options: StepOptions, arguments: str) -> None:
        self.step, self.name, self.options, self.arguments = step, name, options, arguments
        self.digest: int | None = digest_of(arguments)

    def digest_by(self, rules: int) -> int | None:
        """The digest of a record that is delivered by these rules."""
        return self.digest if rules else former_digest_of(self.arguments)

    def encode_value(self, value: object, path: str, max_bytes: int) -> str:
        """What it gave, as JSON that comes back as what the step says that it gives. Raises `Unencodable`,
        `PayloadTooLarge`."""
        text = encode(value, f"{self.name} at {path} returned a value that", max_bytes)
        type_ = self.step.parameters.result_type()
        if type(value) in SCALARS and type_ is type(value):
            return text
        try:
            decode_kept(text, type_, value)
        except NotKept as error:
            raise Unencodable(
                f"{self.name} at {path} returned a value that would not come back as it is: {error}"
            ) from None
        except ValueError as error:
            what = f"{self.name} at {path} returned {shown(text)} which does not fit {self._type()}"
            raise Unencodable(f"{what}: {error}") from None
        return text

    def encode_error(self, error: BaseException, rules: int) -> str:
        """What it raised, for a record that is delivered by these rules."""
        return encode_error(error, self.options.raises, self.step.function.__module__, rules=rules)

    def _type(self) -> str:
        type_ = self.step.parameters.result_type()
        return str(getattr(type_, "__name__", type_))

    def outcome(self, record: Record) -> Outcome:
        """What the body gets: always the decoded copy of what was recorded."""
        if record.kind in (JournalKind.STOPPED, JournalKind.ABANDONED):
            return Outcome(error=Cancelled())
        text = record.payload or "null"
        if record.kind is JournalKind.FAILED:
            return Outcome(error=decode_error(text, self.options.raises, self.step.function.__module__))
        try:
            return Outcome(self.step.parameters.result(text))
        except ValueError as error:
            raise Undecodable(
                f"at {record.path}: {self.name!r} returned {shown(text)} which does not fit {self._type()}: {error}"
            ) from None


class Step(Generic[P, R]):
    """A step, made by `step`. In a workflow function its outcome is recorded; elsewhere it is the plain function."""

    def __init__(
        self,
        function: Callable[..., Any],
        options: StepOptions,
        name: str,
        *,
        is_transaction: bool = False,
        database: str | None = None,
        is_static: bool = False,
    ) -> None:
        """``is_transaction``: its first parameter is a connection, in a transaction of ``database``, None for that of
        the journals. ``is_static``: a class may have it."""
        function, is_staticmethod = plain_function(function, "step")
        self._is_static = is_static or is_staticmethod
        check_text("the name of a step", name, MAX_NAME_CHARS)
        self.function, self.options, self.name = function, options, name
        self.is_transaction, self.database = is_transaction, database
        self.is_async = inspect.iscoroutinefunction(function)
        if is_transaction and self.is_async:
            raise TypeError(f"{name}: a transaction is a plain def, which runs in a thread with psycopg's Connection")
        if options.abandon and self.is_async:
            raise ValueError(
                f"{name}: abandon is for a plain def: an async step can be cancelled, and the run waits for it"
            )
        self.parameters = Parameters(function, skipped=int(is_transaction))
        self.__name__, self.__doc__, self.__module__ = name, function.__doc__, function.__module__
        self.__wrapped__ = function
        self.where = where_of(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """In a body: a durable operation. Elsewhere, tests and other steps among them: the function itself; of a
        transaction that is ``.function``, with a connection."""
        branch = current_branch()
        if branch is not None:
            return Unawaited(branch, self.name, partial(self._recorded, args, kwargs))
        if self.is_transaction:
            raise NotInWorkflow(f"{self.name} is a transaction: call {self.name}.function(connection, …)")
        return self._plain(args, kwargs)

    def using(
        self,
        *,
        retries: int | None = None,
        first: Duration | None = None,
        cap: Duration | None = None,
        timeout: Duration | None = None,
        within: Duration | None = None,
        raises: Sequence[type[BaseException]] | None = None,
        name: str | None = None,
    ) -> Step[P, R]:
        """Return the same step with other options, for one call. Those that are not given stay as they are.

        Args:
            retries: how many more attempts follow when attempts fail.
            first: the pause before the first retry; each further one is twice as long.
            cap: the longest pause.
            timeout: how long one attempt may take.
            within: how long all attempts may take together, pauses included.
            raises: exception classes that are answers, not faults.
            name: its name in the journal.
        """
        given = _options(retries, first, cap, timeout, within, raises)
        options = msgspec.structs.replace(self.options, **given)
        return Step(
            self.function, options, self.name if name is None else name,
            is_transaction=self.is_transaction, database=self.database, is_static=True,
        )  # fmt: skip

    def __set_name__(self, owner: type, name: str) -> None:
        if not self._is_static:
            refuse_method(self.function, owner, "step")

    async def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        result: Any = self.function(*args, **kwargs)
        is_awaited = self.is_async or class_of(result) is CoroutineType  # a decorator may hide that it is async
        value: R = await result if is_awaited else result
        return value

    async def _recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        self.parameters.hints()  # raises here, in the body, when there are none to be had
        bound = self.parameters.bound(args, kwargs)
        arguments = encode(bound, f"the arguments of {self.name}")
        branch = current_branch()
        if branch is not None and branch.kernel.rules:  # before, a call went on with what came back
            try:
                self.parameters.check_kept(bound, arguments)
            except ValueError as error:
                raise Unencodable(f"{self.name} would not get these arguments as they are: {error}") from None
        value: R = await block(CallOperation(StepCall(self, self.name, self.options, arguments)))
        return value


class _Steps:
    """`step`, and `step.transaction`."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def __call__(
        self,
        /,
        *,
        retries: int = 0,
        first: Duration = 1.0,
        cap: Duration = 60.0,
        timeout: Duration | None = None,
        within: Duration | None = None,
        raises: Sequence[type[BaseException]] = (),
        abandon: bool = False,
        name: str | None = None,
    ) -> _StepDecorator: ...
    def __call__(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        retries: int = 0,
        first: Duration = 1.0,
        cap: Duration = 60.0,
        timeout: Duration | None = None,
        within: Duration | None = None,
        raises: Sequence[type[BaseException]] = (),
        abandon: bool = False,
        name: str | None = None,
    ) -> Any:
        """Make a function a step: ``@step``, or with options ``@step(retries=3)``.

        A workflow function awaits it, and its outcome is recorded. An ``async def`` runs in the App's loop for steps; a
        plain ``def`` runs in a thread, and is awaited all the same. Lengths of time are seconds, a `timedelta`, or a
        text such as ``"30 s"``.

        Args:
            function: the function.
            retries: how many more attempts follow when attempts fail; 0 by default. The workflow function gets the
                error of the last one: as itself if its class is in ``raises``, a built-in subclass of one there, or of
                the step's own module, else as `StepFailed`.
            first: the pause before the first retry, 1 s by default. Each further pause is twice as long.
            cap: the longest pause, 60 s by default.
            timeout: how long one attempt may take; without a limit by default. Then it is cancelled, its end is waited
                for, and it has failed with `TooSlow`.
            within: how long all attempts may take together, pauses included; without a limit by default. No retry
                begins later.
            raises: exception classes that are answers, not faults: recorded without a retry, and raised as themselves.
            abandon: of a plain ``def``: a cancelled workflow function goes on without the thread. False by default: the
                end of the thread is waited for, as a thread can't be cancelled.
            name: its name in the journal, the function's by default. Keep it when you rename the function.

        Raises:
            TypeError, ValueError: an option has a value that it can't have, or no value of a type can be kept.
        """
        check_flag("abandon", abandon)
        options = StepOptions(**_options(retries, first, cap, timeout, within, raises), abandon=abandon)
        _check_decorated("step", function, name)
        if function is None:
            return _StepDecorator(options, name)
        return _make(function, options, name)

    @overload
    def transaction(self, function: Callable[Concatenate[Any, P], R], /) -> Step[P, R]: ...
    @overload
    def transaction(
        self,
        /,
        *,
        retries: int = 0,
        first: Duration = 1.0,
        cap: Duration = 60.0,
        within: Duration | None = None,
        raises: Sequence[type[BaseException]] = (),
        name: str | None = None,
        at: str | None = None,
    ) -> _TransactionDecorator: ...
    def transaction(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        retries: int = 0,
        first: Duration = 1.0,
        cap: Duration = 60.0,
        within: Duration | None = None,
        raises: Sequence[type[BaseException]] = (),
        name: str | None = None,
        at: str | None = None,
    ) -> Any:
        """Make a plain function a step that is a transaction of a PostgreSQL.

        Its first parameter is psycopg's `Connection`, in a transaction that commits what it did together with the
        step's outcome: exactly once. Workflow functions call it without that parameter. The function neither commits
        nor rolls back; what it raises undoes it. A time limit is the server's ``statement_timeout``. Lengths of time
        are seconds, a `timedelta`, or a text such as ``"30 s"``.

        Args:
            function: the function, a ``def``.
            retries: how many more attempts follow when attempts fail; 0 by default.
            first: the pause before the first retry, 1 s by default. Each further pause is twice as long.
            cap: the longest pause, 60 s by default.
            within: how long all attempts may take together, pauses included; without a limit by default.
            raises: exception classes that are answers, not faults: recorded without a retry, and raised as themselves.
            name: its name in the journal, the function's by default.
            at: the database, ``postgresql://…``, which needs the table of `penstock runs step-table`. By default that
                of the journals.
        """
        options = StepOptions(**_options(retries, first, cap, None, within, raises))
        _check_decorated("step.transaction", function, name)
        check_database(at)
        decorate = _TransactionDecorator(options, name, at)
        return decorate if function is None else decorate(function)


step = _Steps()


class _TransactionDecorator:
    """`step.transaction(…)` with options, waiting for its function."""

    def __init__(self, options: StepOptions, name: str | None, database: str | None) -> None:
        self._options, self._name, self._database = options, name, database

    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> Step[P, R]:
        name = name_of(function, "step.transaction") if self._name is None else self._name
        return Step(function, self._options, name, is_transaction=True, database=self._database)


class _StepDecorator:
    """`step(…)` with options, waiting for its function."""

    def __init__(self, options: StepOptions, name: str | None) -> None:
        self._options, self._name = options, name

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return _make(function, self._options, self._name)


def _make(function: Callable[..., Any], options: StepOptions, name: str | None) -> Step[..., Any]:
    return Step(function, options, name_of(function, "step") if name is None else name)


def _options(
    retries: int | None,
    first: Duration | None,
    cap: Duration | None,
    timeout: Duration | None,
    within: Duration | None,
    raises: Sequence[type[BaseException]] | None,
) -> dict[str, Any]:
    """What was given, checked, as fields of `StepOptions`."""
    check_int("retries", retries, 0)
    times = {"first": first, "cap": cap, "timeout": timeout, "within": within}
    given: dict[str, Any] = {
        f"{name}_s": seconds_given(name, value, positive=name in ("timeout", "within"))
        for name, value in times.items()
        if value is not None
    }
    if retries is not None:
        given["retries"] = retries
    if raises is not None:
        given["raises"] = _error_classes(raises)
    return given


def _check_decorated(decorator: str, function: object, name: object) -> None:
    """Before the decorator waits for its function, so that the error is of the line with the option."""
    if function is not None and not callable(function) and not isinstance(function, (staticmethod, classmethod)):
        raise TypeError(wrong(f"what @{decorator} decorates", function, 'a function; a name is given by name="…"'))
    check_text("name", name, MAX_NAME_CHARS)


def _error_classes(raises: Any) -> tuple[type[BaseException], ...]:
    """What ``raises`` lists. Raises TypeError for anything that is no exception class."""
    if issubclass(type(raises), type) and issubclass(raises, BaseException):
        name = raises.__name__
        raise TypeError(f"raises is {name}: give a list of exception classes, raises=[{name}]")
    try:
        classes: tuple[Any, ...] | None = None if isinstance(raises, str) else tuple(raises)
    except TypeError:
        classes = None
    if classes is None:
        raise TypeError(f"raises is {repr_of(raises)}: give a list of exception classes, such as raises=[ValueError]")
    for index, each in enumerate(classes):
        if not (issubclass(type(each), type) and issubclass(each, BaseException)):
            what = f"raises[{index}] is {repr_of(each)}"
            raise TypeError(
                f"{what}: an exception class is needed there, such as ValueError, without quotes or parentheses"
            )
    return classes


async def _send(run_id: str, name: str, payload: str, force: bool = False) -> None:
    info = step_info()
    key = hashlib.blake2b(info.key.encode(), digest_size=24).hexdigest()
    await current_sender.get()(run_id, name, payload, key, sender=f"run {info.run_id}", force=force)


async def _start(workflow: str, version: int, arguments: str, id: str | None) -> str:
    return await current_starter.get()(workflow, version, arguments, id or step_info().key)


starting = Step[..., str](_start, StepOptions(retries=1_000, raises=(StartRefused,)), "start")
"""What `start` asks for: a step like others, that starts once, as its id is the same in all attempts."""

sending = Step[..., None](_send, StepOptions(retries=1_000, raises=(SendRefused,)), "send")
"""What `send` asks for: a step like others, that delivers once, as its key is the same in all attempts."""
