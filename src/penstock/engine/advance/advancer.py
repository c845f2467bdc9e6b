"""From an event to the changes it makes: `core.advance`, and the workflows that are chained to it.

What takes long is done neither on the loop nor under locks. `Advancer.run` begins on the loop; past a small allowance
it gives up with `LongWork` and leaves its inputs in the item. `Advancer.ahead` does the same in a thread, with made-up
ids, and keeps what the evaluations gave. Under the lock, `run` replays that record if its inputs are still the same.
Must not write, nor take what others wait for.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from datetime import datetime
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import trio

from penstock.core.advance.advance import Inputs, PositionsExhausted, advance
from penstock.core.advance.completion import CompletionsNeeded
from penstock.core.advance.effect import ChildStart, Effects
from penstock.core.advance.event import Event, InstanceStarted
from penstock.core.advance.for_each import NO_ITEMS, KeptItems, RawNeeded, ResultsNeeded
from penstock.core.advance.recorder import ItemsNeeded
from penstock.core.expression.work import LongWork, Record, Work
from penstock.core.rules.state import Instance, Token
from penstock.engine.advance.context_loader import Answers, ContextLoader
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.group_commit.item import Item
from penstock.engine.requests.ids import IdSource
from penstock.errors import BadRequest, PenstockError
from penstock.log.log import get_logger
from penstock.loop.offload import run_long
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.rows import full_path as store
from penstock.store.rows.calls import CalledBy
from penstock.store.rows.full_path import Change, NewInstance

STARTS_MAX: Final = 100
"""Instances that one advance may start, chained or called, and those that they start. The last one of a chain fails;
calls go on in a transaction of their own."""
HERE_STEPS: Final = 20_000
"""Steps of work that one advance may do on the loop, and all together between two turns of it: 2 to 5 ms."""
HERE_BYTES: Final = 262_144
"""Variables that are decoded on the loop: as long."""

R = TypeVar("R")
log = get_logger("penstock.engine.advancer")


class Case(NamedTuple):
    """All that an advance depends on, but for ids and positions."""

    loaded: LoadedDefinition
    instance: Instance
    tokens: list[Token]
    variables: str | bytes | None
    """JSON text; None where the definition needs none."""
    event: Event
    now: datetime
    signals: dict[int, list[tuple[int, bytes]]]
    root: int
    """The first instance of the tree of calls that it is in."""
    kept: KeptItems = NO_ITEMS
    """Of its forEach steps."""
    first: bool = True
    """Nothing that its transaction has decided of the instance is still to be written."""

    def same(self, other: Case) -> bool:
        """Return whether it would evaluate the same on the same. `now` is that of the first."""
        return (
            self.loaded.key == other.loaded.key
            and self.event == other.event
            and self.instance.status == other.instance.status
            and [_place(token) for token in self.tokens] == [_place(token) for token in other.tokens]
            and self.signals == other.signals
            and self.kept.states == other.kept.states
            and self.variables == other.variables
        )


def _place(token: Token) -> tuple[object, ...]:
    """What an advance looks at in a token: leases and their holders may change meanwhile."""
    return (
        token.id,
        token.seq,
        token.step,
        token.state,
        token.failures,
        token.parent_id,
        token.side,
        token.pending,
        token.arrived,
        token.leaving,
        token.raw,
        token.item,
    )


class Ahead(NamedTuple):
    """What was evaluated before the locks were taken."""

    case: Case
    record: Record
    found: list[int | None]
    """What was looked up: definitions, and instances that go on."""
    positions: int


class LongItem(Item[R], Generic[R]):
    """An item whose advance may take long."""

    __slots__ = ("ahead", "case", "planned", "stays", "tries", "was_long")

    repeatable = False
    """Whether doing it twice is doing it once: then nothing has to prove that it was committed."""

    def __init__(self) -> None:
        super().__init__()
        self.planned: Any = None  # its answer, once its transaction is known to be committed
        self.case: Case | None = None  # of an attempt that took too long
        self.ahead: Ahead | None = None
        self.tries = 0
        self.was_long = False
        self.stays = False  # evaluated under the lock where need be: its inputs changed too often

    def forget_large(self) -> None:
        """Hold no large variables while it waits: they are read again."""
        if self.case is not None and self.case.variables is not None and len(self.case.variables) > HERE_BYTES:
            self.case = None

    @property
    def same_as(self) -> object:
        """Of two with the same here one is enough, and nobody waits for the other one."""
        return id(self)


class _Following(NamedTuple):
    """An instance that another one's advance starts."""

    loaded: LoadedDefinition
    variables: bytes
    values: dict[str, Any] | None
    parent: int
    chained: bool
    depth: int = 0
    call: ChildStart | None = None


class _Advanced(NamedTuple):
    """What an advance decided, with the definitions of what it starts."""

    effects: Effects
    chained: LoadedDefinition | None
    called: dict[tuple[str, int], LoadedDefinition]


class Advancer:
    """Runs advances."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        definitions: Definitions,
        ids: IdSource,
    ) -> None:
        self._database = database
        self._settings = settings
        self._definitions = definitions
        self._ids = ids
        self.jitter_source: Callable[[], float] = random.random
        """A number in [0, 1) for the jitter of back-offs; tests make it a constant."""
        self._since_turn = 0

    async def run(
        self,
        connection: TrioConnection,
        item: LongItem[Any],
        case: Case,
        positions: deque[int],
        created: NewInstance | None = None,
    ) -> list[tuple[Change, LoadedDefinition]]:
        """The changes to the instance, and to those that are chained to it.

        Raises PenstockError for an advance that failed, LongWork for one that takes long (then ``item.case`` is set),
        CompletionsNeeded where what it has to read is still to be written.
        """
        ahead = item.ahead if item.ahead is not None and item.ahead.case.same(case) else None
        if ahead is None and item.stays:
            ahead = await self.ahead(case, connection)
        limit = self._settings.advance_max_work_steps
        if ahead is None:
            work, variables = Work(limit, here=HERE_STEPS), case.variables
            too_large = variables is not None and len(variables) > HERE_BYTES
        else:
            work, variables = Work(limit, replay=ahead.record), None if case.variables is None else b"{}"
            too_large = False
            if len(positions) < ahead.positions:
                positions.extend(await store.more_positions(connection, ahead.positions))
        looked_up: list[int | None] = []

        def note(found: int | None) -> None:
            looked_up.append(found)
            if ahead is not None and looked_up != ahead.found[: len(looked_up)]:
                raise LongWork  # a newer version came meanwhile, or an instance went on

        try:
            if too_large:
                raise LongWork
            connect, more = partial(self._one, connection), partial(store.more_positions, connection)
            locks = not item.stays
            loader = ContextLoader(
                self._definitions, connect, self._ids.next, positions, more, note, locks=locks, first=case.first
            )
            changes = await self._run(case._replace(variables=variables), work, loader, _call, created)
        except LongWork:
            item.case = case
            raise
        if ahead is None:
            self._since_turn += work.spent
            if self._since_turn > HERE_STEPS:  # a batch has hundreds of such
                self._since_turn = 0
                await trio.lowlevel.checkpoint()
        return changes

    async def ahead(self, case: Case, connection: TrioConnection | None = None) -> Ahead:
        """Evaluate in a thread; nothing is kept but what the expressions gave. ``connection``: one that is open."""
        work = Work(self._settings.advance_max_work_steps)
        dreamt = itertools.count(1)

        async def more(count: int) -> deque[int]:
            return deque(itertools.islice(dreamt, count))

        looked_up: list[int | None] = []
        connect, ids = partial(self._one, connection), itertools.count(-2, -1)
        loader = ContextLoader(self._definitions, connect, ids.__next__, await more(1_000), more, looked_up.append)
        changes = await self._run(case, work, loader, run_long, None)
        return Ahead(case, work.record, looked_up, sum(len(change.effects.history) for change, _ in changes))

    @asynccontextmanager
    async def _one(self, connection: TrioConnection | None) -> AsyncGenerator[TrioConnection]:
        """The connection that is open, else one of our own."""
        if connection is not None:
            yield connection
        else:
            async with self._database.connection() as own:
                yield own

    async def _run(
        self,
        case: Case,
        work: Work,
        loader: ContextLoader,
        call: Callable[..., Awaitable[Any]],
        created: NewInstance | None,
    ) -> list[tuple[Change, LoadedDefinition]]:
        values = None if case.variables is None else await call(_decode, case.variables)
        left, started_bytes = STARTS_MAX, 0
        changes: list[tuple[Change, LoadedDefinition]] = []
        following: deque[_Following] = deque()
        while True:
            may_chain = left > 0 and started_bytes <= self._settings.instance_variables_max_bytes
            advanced = await self._advance(case, values, work, loader, call, left=left, may_chain=may_chain)
            change = Change(advanced.effects, case.loaded, created)
            changes.append((change, case.loaded))
            recalled: list[tuple[int, int]] = []
            for one in await self._starts(case, values, advanced, work, loader, call, recalled):
                left -= 1
                started_bytes += len(one.variables)
                following.append(one)
            if recalled:
                changes[-1] = (change._replace(recalled=recalled), case.loaded)
            if not following:
                return changes
            case, values, created = self._begin(following.popleft(), case, loader)

    async def _starts(
        self,
        case: Case,
        values: dict[str, Any] | None,
        advanced: _Advanced,
        work: Work,
        loader: ContextLoader,
        call: Callable[..., Awaitable[Any]],
        recalled: list[tuple[int, int]],
    ) -> list[_Following]:
        """What an advance starts; ``recalled`` gets what goes on instead, with the seq of its call."""
        effects, instance = advanced.effects, case.instance
        starts: list[_Following] = []
        if advanced.chained is not None:
            values = {**(values or {}), **await call(_written, effects)}
            text: bytes = await call(work.keep, partial(msgspec.json.encode, values))
            starts.append(_Following(advanced.chained, text, dict(values), instance.id, chained=True))
        for made in effects.calls:
            failed = await loader.find_earlier(made)
            if failed is not None:
                recalled.append((failed, made.seq))
                continue
            loaded = advanced.called[made.definition_id, made.version]
            variables: dict[str, Any] | None = None
            if loaded.needs_variables:
                variables = await call(work.keep, partial(_decode, made.variables))
            depth = instance.depth + 1
            starts.append(_Following(loaded, made.variables, variables, instance.id, False, depth, made))
        return starts

    @staticmethod
    def _begin(one: _Following, case: Case, loader: ContextLoader) -> tuple[Case, dict[str, Any] | None, NewInstance]:
        id, called_by, key = loader.new_id(), None, None
        if one.call is not None:
            called_by = CalledBy(one.parent, one.call.token_id, one.call.seq, case.root, one.depth)
            key = one.call.business_key
        created = NewInstance(id, one.loaded.key, one.variables, key, parent_id=one.parent, called_by=called_by)
        variables = one.variables if one.values is not None else None
        root = id if called_by is None else case.root
        before = case.instance
        instance = Instance(id, depth=one.depth, priority=before.priority, flow_key=before.flow_key)
        begun = Case(one.loaded, instance, [], variables, InstanceStarted(), case.now, {}, root)
        return begun, one.values, created

    async def _advance(
        self,
        case: Case,
        values: dict[str, Any] | None,
        work: Work,
        loader: ContextLoader,
        call: Callable[..., Awaitable[Any]],
        *,
        left: int,
        may_chain: bool,
    ) -> _Advanced:
        """Advance, again with more positions when they run out; with the definitions that it starts."""
        next_known = True
        next_problem: str | None = None
        found: dict[tuple[str, int], LoadedDefinition | None] = {}
        unfit: dict[tuple[str, int, bytes], str] = {}
        needed = len(loader.positions)
        answers = Answers(loader, case.instance.id, case.kept)
        mark, keeps_raw = work.mark(), True
        while True:
            inputs = Inputs(
                now=case.now, new_id=loader.new_id, positions=loader.positions, jitter=self.jitter_source(),
                next_known=next_known, uncallable=[about for about, loaded in found.items() if loaded is None],
                next_problem=next_problem, unfit=unfit,
                calls_max=left, may_chain=may_chain, max_automatic_steps=self._settings.max_automatic_steps,
                max_written_bytes=self._settings.instance_variables_max_bytes, work=work,
                completions=answers.completions, buffered=case.signals, maps=case.kept.states, items=answers.items,
                results=answers.results, raw=answers.raw, keeps_raw=keeps_raw,
            )  # fmt: skip
            copies = [copy(token) for token in case.tokens]
            start = msgspec.structs.replace(case.instance)
            try:
                effects: Effects = await call(
                    advance, case.loaded.definition, start, copies, values, case.event, inputs
                )
            except PositionsExhausted:
                needed = max(64, needed * 4)
                loader.positions.extend(await loader.more(needed))
                work.rewind(mark)
                continue
            except (ItemsNeeded, ResultsNeeded, RawNeeded, CompletionsNeeded) as needed_rows:
                await answers.read(needed_rows)
                work.rewind(mark)
                continue
            except (LongWork, BadRequest):  # BadRequest: what a start is refused for
                raise
            except Exception as error:
                # a bug of ours; that the process ended would not help: the same call would end the next one too
                log.exception("an advance failed", instance=f"{start.id:x}", definition=case.loaded.definition.id)
                raise PenstockError("the instance could not go on: the engine's log has the reason") from error
            if effects.raw_kept and not await loader.may_keep_raw():
                keeps_raw = False
                work.rewind(mark)
                continue
            await _find_called(effects, loader, found)
            called = {about: loaded for about, loaded in found.items() if loaded is not None}
            wrong = await _find_unfit(effects, loader, called)
            if wrong or any(_about(made) not in called for made in effects.calls):
                unfit |= wrong
                work.rewind(mark)
                continue
            if effects.chain is None:
                return _Advanced(effects, None, called)
            following, next_problem = await _find_next(effects.chain.definition_id, effects, values, loader, call)
            if following is not None and next_problem is None:
                return _Advanced(effects, following, called)
            next_known = following is not None
            work.rewind(mark)


async def _find_called(
    effects: Effects, loader: ContextLoader, found: dict[tuple[str, int], LoadedDefinition | None]
) -> None:
    """Look up the definitions that calls name, each once; None for those that can't be called."""
    for about in dict.fromkeys(map(_about, effects.calls)):
        if about not in found:
            found[about] = await loader.find(*about)


async def _find_unfit(
    effects: Effects, loader: ContextLoader, called: Mapping[tuple[str, int], LoadedDefinition]
) -> dict[tuple[str, int, bytes], str]:
    """The calls that begin with what the workflow called does not take, and why."""
    wrong: dict[tuple[str, int, bytes], str] = {}
    for made in effects.calls:
        loaded = called.get(_about(made))
        if loaded is not None and (why := await loader.find_wrong(loaded, made.variables)) is not None:
            wrong[made.definition_id, made.version, made.variables] = why
    return wrong


async def _find_next(
    id: str,
    effects: Effects,
    values: Mapping[str, Any] | None,
    loader: ContextLoader,
    call: Callable[..., Awaitable[Any]],
) -> tuple[LoadedDefinition | None, str | None]:
    """Return the definition that follows, and why it does not take what this instance ends with."""
    following = await loader.find(id, 0)
    if following is None or following.code_type is None:
        return following, None
    return following, await loader.find_wrong(following, await call(_ends_with, values, effects))


def _about(made: ChildStart) -> tuple[str, int]:
    return made.definition_id, made.version


def _ends_with(values: Mapping[str, Any] | None, effects: Effects) -> bytes:
    return msgspec.json.encode({**(values or {}), **_written(effects)})


async def _call(compute: Callable[..., Any], *args: Any) -> Any:
    """Here and now, in the place of `run_long`."""
    return compute(*args)


def _decode(text: str | bytes) -> dict[str, Any]:
    return msgspec.json.decode(text, type=dict[str, Any])


def _written(effects: Effects) -> dict[str, Any]:
    """What the advance itself wrote, in order."""
    written: dict[str, Any] = {}
    for row in effects.history:
        if row.output is not None:
            written.update(msgspec.json.decode(row.output, type=dict[str, Any]))
    return written
