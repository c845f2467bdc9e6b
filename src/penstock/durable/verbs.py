"""What a body says beside its steps: Trio's verbs, and those of durable runs. Which run: see `kernel.current`."""

from __future__ import annotations

import functools
import hashlib
import inspect
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from datetime import UTC, datetime
from math import inf
from typing import Any, Generic, Literal, NoReturn, ParamSpec, TypeAlias, TypeVar, TypeVarTuple, cast, overload

import msgspec

from penstock.durable.child import ChildCall, ChildOperation
from penstock.durable.codec import decode, encode, shown
from penstock.durable.duration import Duration
from penstock.durable.errors import BadMessage, ContinueAsNew, NotInWorkflow
from penstock.durable.given import check_callable, check_flag, check_id, check_int, check_text, seconds_given, wrong
from penstock.durable.step import sending, starting
from penstock.durable.workflow import Workflow, workflow_in
from penstock.kernel.branch import Branch
from penstock.kernel.current import current_branch
from penstock.kernel.errors import Cancelled
from penstock.kernel.local import MemoryReceiveChannel, MemorySendChannel, Semaphore, open_channel
from penstock.kernel.nursery import Nursery
from penstock.kernel.operation import TOOK, Outcome, Receive, Sleep, block
from penstock.kernel.record import Record
from penstock.kernel.scope import CancelScope
from penstock.kernel.unawaited import awaited
from penstock.wire.shown import parts, with_value

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
V = TypeVar("V")
Ts = TypeVarTuple("Ts")
Bad: TypeAlias = Literal["reject", "raise"]
"""What a `receive` does with a message that is not of its type."""
CONTINUE_AFTER_RECORDS = 10_000
"""A journal of so many is worth a fresh one: its replay takes a tenth of a second."""
MAX_NAME_CHARS = 256
MAX_VIEW_KEYS = 100
"""Names under which a run shows values."""
TYPES_KEPT = 1_000
"""Of `receive`, that are known to be types."""


class RunInfo(msgspec.Struct):
    """What a workflow function can know of its run. `run_info` returns it.

    Attributes:
        id: the id that the run was started with, or its instance's.
        workflow: the name of the workflow.
        version: the version of the workflow.
        started_at: when the run was started, in UTC.
        replaying: whether what happens now happened before, and comes from the journal.
        view: what `set_view` set last, as JSON.
        deadline: when the run is cancelled; None without a deadline.
        continuation: how often the run has continued as a new one (`continue_as_new`).
        records: how many records its journal had when `run_info` was called.
    """

    id: str
    workflow: str
    version: int
    started_at: datetime
    replaying: bool = False
    view: str | None = None
    deadline: datetime | None = None
    continuation: int = 0
    records: int = 0
    draws_as: str | None = None
    """Of a run that was forked: the key of the run whose records it replays, as long as it does."""

    @property
    def is_continue_as_new_suggested(self) -> bool:
        """Return whether the run's journal had 10,000 records when `run_info` was called: then `continue_as_new` saves
        time at each replay. The same at replay."""
        return self.records >= CONTINUE_AFTER_RECORDS

    @property
    def key(self) -> str:
        """Return what tells this run from all others, also from those that it continues."""
        return f"{self.id}~{self.continuation}" if self.continuation else self.id


class Won(msgspec.Struct, Generic[T], frozen=True):
    """The alternative of `first` that ended first: its ``name``, and the ``value`` that it gave."""

    name: str
    value: T


@awaited
async def sleep(duration: Duration) -> None:
    """Wait, across restarts of the program.

    Args:
        duration: how long: seconds, a `timedelta`, or a text such as ``"3 days"``.

    Raises:
        BadDuration: it is no length of time.
        Cancelled: a scope around it was cancelled.
    """
    _branch("sleep", "trio.sleep")
    await block(_sleeping(duration))


def open_nursery() -> Nursery:
    """Open a nursery: ``async with open_nursery() as nursery``.

    Branches that `Nursery.start_soon` starts run at the same time. When the block ends, all of them have ended. If one
    raises, the others are cancelled, and the block raises an `ExceptionGroup`.
    """
    return Nursery(_branch("open_nursery", "trio.open_nursery").kernel)


def move_on_after(duration: Duration, *, shield: bool = False) -> CancelScope:
    """Limit the time of a block: ``with move_on_after("1 day") as scope``. After it the function goes on.

    Args:
        duration: how long the block may take: seconds, a `timedelta`, or a text such as ``"1 day"``. It counts while no
            process runs, too.
        shield: protect the block from a cancel from outside, as clean-up needs it.

    Returns:
        The scope. ``scope.cancelled_caught`` says whether the time was over.
    """
    kernel = _branch("move_on_after", "trio.move_on_after").kernel
    check_flag("shield", shield)
    return CancelScope(kernel, seconds_given("duration", duration), shield=shield)


def fail_after(duration: Duration, *, shield: bool = False) -> CancelScope:
    """Limit the time of a block: ``with fail_after("1 day")``. If the time is over it raises `TooSlow`.

    Args:
        duration: how long the block may take: seconds, a `timedelta`, or a text such as ``"1 day"``. It counts while no
            process runs, too.
        shield: protect the block from a cancel from outside.

    Raises:
        TooSlow: the block took longer.
    """
    kernel = _branch("fail_after", "trio.fail_after").kernel
    check_flag("shield", shield)
    return CancelScope(kernel, seconds_given("duration", duration), shield=shield, too_slow=True)


def new_cancel_scope(*, shield: bool = False) -> CancelScope:
    """Open a scope that you cancel yourself: ``with CancelScope() as scope``, then ``scope.cancel()``.

    Args:
        shield: protect the block from a cancel from outside.
    """
    kernel = _branch("CancelScope", "trio.CancelScope").kernel
    check_flag("shield", shield)
    return CancelScope(kernel, inf, shield=shield)


def open_memory_channel(max_buffer_size: float) -> tuple[MemorySendChannel[Any], MemoryReceiveChannel[Any]]:
    """Open a channel between branches of this run.

    Args:
        max_buffer_size: how many items may wait in it; ``math.inf`` for no limit of its own. With 0 a sender waits for
        a
            receiver.

    Returns:
        The sending end and the receiving end.
    """
    return open_channel(max_buffer_size)


@awaited
async def receive(name: str, type_: type[T], *, bad: Bad = "reject") -> T:
    """Take the next message of a name that is of a type. One that came before was kept.

    It is taken when this returns: cancelled before, it is there for the next one.

    Args:
        name: of the message.
        type_: what it must be. The run publishes its JSON schema while it waits, and `send` refuses what does not fit.
        bad: what becomes of a message that came all the same and is no ``type_``. ``"reject"``, the default: it stays
            where it is, shown with its sender, until an operator drops or corrects it, and the next one that fits is
            taken. ``"raise"``: it is used up, and `BadMessage` raised.

    Raises:
        BadMessage: it is no ``type_``; only with ``bad="raise"``.
        TypeError: ``type_`` is no type.
    """
    _branch("receive", "a message channel of your own")
    value: T = await block(_receiving(name, type_, bad))
    return value


@awaited
async def send(run_id: str, name: str, value: object = None, *, force: bool = False) -> None:
    """Send a message to another run, once, whatever happens here.

    Args:
        run_id: the id that it was started with, or its instance's.
        name: of the message.
        value: what its ``receive`` gives.
        force: send also what does not fit the type that it waits for.

    Raises:
        SendRefused: there is no such run, it has ended, or the value does not fit.
    """
    _branch("send", "Run.send of a client")
    check_text("run_id", run_id, needed=True)
    _check_name(name)
    check_flag("force", force)
    text = encode(value, f"message {name!r}")
    await (sending(run_id, name, text, force=True) if force else sending(run_id, name, text))


@overload
async def start(workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> str: ...
@overload
async def start(
    workflow: Callable[[*Ts], Coroutine[Any, Any, object]], /, *args: *Ts, id: str | None = None
) -> str: ...
@awaited  # type: ignore[misc]  # a parameter with the name of an option: the option gets what is given
async def start(workflow: Any, /, *args: Any, id: str | None = None, **kwargs: Any) -> str:
    """Start a run of its own, once, whatever happens here. Nobody waits for it, and a cancel here does not concern it.

    Args:
        workflow: which one. Another program may serve it.
        args: the arguments of its function, as ``kwargs``. Beside ``id``, give those by keyword in a
            `functools.partial` around the workflow.
        id: the id of the run, as of `App.start`. By default one that follows from this run and place.

    Returns:
        Its instance id.

    Raises:
        StartRefused: the run with this id has other arguments, or this program may start none.
    """
    _branch("start", "App.start")
    check_id(id)
    target, args, kwargs = workflow_in(workflow, args, kwargs)
    return await starting(target.name, target.version, target.encode_arguments(args, kwargs), id)


@overload
async def child(workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
@overload
async def child(workflow: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts, id: str | None = None) -> R: ...
@overload
async def child(workflow: str, /, *, id: str | None = None, **kwargs: Any) -> Any: ...
@awaited  # type: ignore[misc]  # a parameter with the name of an option: the option gets what is given
async def child(workflow: Any, /, *args: Any, id: str | None = None, **kwargs: Any) -> Any:
    """Start a run of another workflow, and wait for its result.

    It is started once, whatever happens here. A cancel here cancels it, and waits for its end.

    Args:
        workflow: which one; another program may serve it. Or the id of a definition: an instance of its latest version
            is started, and the result is a dictionary of the variables that it ended with.
        args: the arguments of its function, as ``kwargs``. Beside ``id``, give those by keyword in a
            `functools.partial` around the workflow. Variables of a definition go by keyword.
        id: the id of the run, as of `App.start`; no other call may have it. By default one that follows from this run
            and place.

    Raises:
        ChildFailed: it failed, or was cancelled by others.
        StartRefused: it could not begin.
    """
    _branch("child", "App.start")
    check_id(id)
    target: Workflow[..., Any] | str = workflow
    if isinstance(target, str):
        check_text("the id of a definition", target)
    if not isinstance(target, str):
        target, args, kwargs = workflow_in(workflow, args, kwargs)
        arguments = target.encode_arguments(args, kwargs)
    elif args:
        raise TypeError("an instance of a definition has variables by name: child('billing', order=17)")
    else:
        arguments = encode(kwargs, f"the variables of {target!r}")
    return await block(ChildOperation(ChildCall(target, arguments, id)))


@awaited
async def each(
    function: Callable[[T], Awaitable[V]],
    items: Iterable[T],
    *,
    limit: int = 10,
    key: Callable[[T], object] | None = None,
) -> list[V]:
    """Call a function for each item, each in a branch of its own. Return the results in the order of the items.

    Args:
        function: a step, or any coroutine function.
        items: its arguments, one for each call.
        limit: how many calls run at a time; 10 by default.
        key: gives a branch its name, from the item, so that items may change places between deploys. By default the
            name is the number of the item.

    Raises:
        BaseExceptionGroup: a call failed, and the others were cancelled, as in a nursery.
    """
    _branch("each", "a nursery")
    if not callable(function):
        raise TypeError(wrong("the function of each", function, "a step or a coroutine function, without a call"))
    try:
        found = iter(items)
    except TypeError:
        raise TypeError(wrong("items", items, "a list, or what a `for` takes")) from None
    check_int("limit", limit, 1)
    check_callable("key", key, "a function of an item, as lambda order: order.id")
    room = Semaphore(limit)
    results: dict[int, V] = {}

    async def one(number: int, item: T) -> None:
        try:
            results[number] = await function(item)
        finally:
            room.release()

    async with open_nursery() as nursery:
        for number, item in enumerate(found):
            await room.acquire()  # in their order: branches are named by it
            nursery.start_soon(one, number, item, key=None if key is None else str(key(item)))
    return [results[number] for number in sorted(results)]


@awaited
async def first(**alternatives: Awaitable[T]) -> Won[T]:
    """Run alternatives at the same time until one of them ends. Cancel the others and wait for their ends.

    A `receive` that loses leaves its message for the next one. An alternative that did something after its `receive`
    has
    used the message up. A step or a child that ended although another alternative won has done its work, and nobody
    gets
    its value.

    Args:
        alternatives: calls by name, as ``decided=receive("approval", Approval)``.

    Returns:
        The alternative that won: its name and its value.

    Raises:
        BaseExceptionGroup: an alternative failed: a step, a child, or a `receive` that raises `BadMessage`. The others
            were cancelled, as in a nursery.
    """
    branch = _branch("first", "a nursery")
    if not alternatives:
        raise ValueError("first() needs at least one alternative")
    for name, alternative in alternatives.items():
        if not inspect.isawaitable(alternative):
            raise TypeError(wrong(f"alternative {name!r} of first", alternative, f"a call, as {name}=receive(…)"))
    won: list[Won[T]] = []
    try:
        async with Nursery(branch.kernel) as nursery:

            async def run(name: str, alternative: Awaitable[T]) -> None:
                value = await alternative
                if not won:
                    won.append(Won(name, value))
                    nursery.cancel_scope.cancel()

            for name, alternative in alternatives.items():
                nursery.start_soon(run, name, alternative, key=name)
    finally:  # one that never began would be told of as never awaited
        for alternative in alternatives.values():
            if isinstance(alternative, Coroutine):
                alternative.close()
    return won[0]


def now() -> datetime:
    """Return the time of the last record, in UTC. It moves only where the function waits, and is the same at replay."""
    return datetime.fromtimestamp(_branch("now", "datetime.now").kernel.now, UTC)


def rng() -> random.Random:
    """Return a random generator of its own that gives the same numbers at replay. Not for secrets."""
    return random.Random(_draw("rng"))


def uuid4() -> uuid.UUID:
    """Return a random UUID that is the same at replay. Not for secrets."""
    return uuid.UUID(int=_draw("uuid4") >> 128, version=4)


def run_info() -> RunInfo:
    """Return the id, workflow, version, start and deadline of this run, and whether it replays."""
    kernel = _branch("run_info", "step_info").kernel
    info: RunInfo = kernel.info
    info.records = kernel.records
    return info


def patched(name: str) -> bool:
    """Return whether this run comes here with the code of this change: ``if patched("fraud check"): …``.

    It is true in runs that come here with this code, and false in runs that were past this place before. The answer is
    the
    same each time the run asks. If no run is left that says no, take the ``if`` out, with its ``else``: `penstock
    check`
    counts them.

    Args:
        name: names the change, with at most 256 characters.
    """
    branch = _branch("patched", "nothing: it is of bodies")
    check_text("the name of a patch", name, MAX_NAME_CHARS, needed=True)
    if name.startswith(TOOK):
        raise ValueError(f"the name of a patch does not begin with {TOOK!r}: such marks are Penstock's")
    return branch.kernel.patched(name)


def continue_as_new(*args: Any, **kwargs: Any) -> NoReturn:
    """End the workflow function and call it again with these arguments, on an empty journal.

    It is the same run, so it may go on for ever. Messages that nobody has received are kept, and so are deadline and
    view.
    The records of what it did are deleted. Call it in the workflow function itself, not in a branch of a nursery. A run
    that was cancelled ends instead.

    Args:
        args: the arguments of the next call, as ``kwargs``.
    """
    branch = _branch("continue_as_new", "nothing: it is of bodies")
    if branch.nursery is not None:
        raise RuntimeError("continue_as_new() is for the workflow function itself: a branch can't end the others")
    if branch.scope.effective:
        raise Cancelled
    raise ContinueAsNew(args, kwargs)


def set_view(value: object, *, key: str | None = None) -> None:
    """Show a value to whoever looks at the run, until the next one.

    Args:
        value: any value with a JSON form.
        key: a name under which it is shown beside others: ``run.view(key)`` waits for it. 100 names at most.

    Raises:
        Unencodable: the value has no JSON form.
        ValueError: the run shows values under 100 other names.
    """
    check_text("key", key, MAX_NAME_CHARS)
    info, text = run_info(), encode(value, "the view")
    if key is not None and len(found := parts(info.view)[1]) >= MAX_VIEW_KEYS and key not in found:
        raise ValueError(f"key is {key!r}: the run shows values under {MAX_VIEW_KEYS} other names")
    info.view = with_value(info.view, text, key)


def _draw(verb: str) -> int:
    """256 bits that follow from the run, the branch and how often it drew."""
    branch = _branch(verb, verb)
    branch.draws += 1
    key = f"{branch.kernel.info.draws_as or branch.kernel.info.key}\0{branch.path}\0{branch.draws}"
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=32, person=b"penstock").digest())


def _sleeping(duration: Duration) -> Sleep:
    """Apart from `sleep`, as each local name and each nested call takes memory of all that wait there."""
    return Sleep(seconds_given("duration", duration))


def _receiving(name: str, type_: type[Any], bad: Bad) -> Receive:
    _check_name(name)
    if bad not in ("reject", "raise"):
        raise ValueError(wrong("bad", bad, '"reject" or "raise"'))
    try:
        is_type = _is_type(cast("Hashable", type_))
    except TypeError:  # it has no hash, as no annotation is
        is_type = False
    if not is_type:
        raise TypeError(wrong(f"the type of message {name!r}", type_, "a type, as int or list[Order]"))
    return Receive(name, _decoder(name, type_), raises=bad == "raise", type_=type_)


@functools.lru_cache(TYPES_KEPT)
def _is_type(type_: Hashable) -> bool:
    try:
        msgspec.json.Decoder(type_)
    except TypeError:
        return False
    return True


def _decoder(name: str, type_: type[T]) -> Callable[[Record], Outcome]:
    def outcome(record: Record) -> Outcome:
        text = record.payload or "null"
        try:
            return Outcome(decode(text, type_))
        except ValueError as error:
            what = f"message {name!r} is {shown(text)} which does not fit {getattr(type_, '__name__', type_)}: {error}"
            return Outcome(error=BadMessage(what, text, str(error)))

    return outcome


def _check_name(name: str) -> None:
    check_text("the name of a message", name, MAX_NAME_CHARS, needed=True)


def _branch(verb: str, instead: str) -> Branch:
    branch = current_branch()
    if branch is None:
        raise NotInWorkflow(f"{verb}() is for workflow functions; in a step use {instead}")
    return branch
