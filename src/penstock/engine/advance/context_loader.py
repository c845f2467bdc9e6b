"""What an advance can't make itself: ids, positions, definitions, and the rows that it finds it has to read.

Used by `advancer` alone, under locks by the connection that has them, before any lock by one of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from penstock.core.advance.completion import CompletionAnswer, CompletionsNeeded, Question
from penstock.core.advance.effect import ChildStart
from penstock.core.advance.for_each import KeptItems, RawNeeded, ResultsNeeded
from penstock.core.advance.recorder import ItemsNeeded
from penstock.engine.definitions.definitions import CODE_CALLS_VERSION, Definitions, LoadedDefinition
from penstock.errors import Conflict
from penstock.store.db.connection import TrioConnection
from penstock.store.db.vault import KeyMissing
from penstock.store.rows import calls, compensation, for_each
from penstock.store.rows.engines import needed_version, require_version

RAW_RESULTS_VERSION = 21
"""Older engines would forget a raw result, and go on without what its mapping gives."""


class ContextLoader:
    """Of one item. ``connect`` gives the connection to read by; ``note`` is told what was looked up: definitions,
    instances that go on, and what is to be undone. ``locks``: the connection holds some. ``first``: nothing that its
    transaction has decided of the instance is still to be written."""

    def __init__(
        self,
        definitions: Definitions,
        connect: Callable[[], AbstractAsyncContextManager[TrioConnection]],
        new_id: Callable[[], int],
        positions: deque[int],
        more: Callable[[int], Awaitable[deque[int]]],
        note: Callable[[int | None], None],
        *,
        locks: bool = False,
        first: bool = True,
    ) -> None:
        self._definitions = definitions
        self.connect = connect
        self.new_id = new_id
        self.positions = positions
        self.more = more
        self.note = note
        self._locks = locks
        self.first = first

    async def find(self, id: str, version: int) -> LoadedDefinition | None:
        """Return a version of a definition, 0 for the latest. None of one written as code, while older engines may
        live."""
        async with self.connect() as connection:
            found = await self._definitions.find(connection, id, version, locks=self._locks)
            if found is not None and found.code and await needed_version(connection) < CODE_CALLS_VERSION:
                found = None
        self.note(None if found is None else found.key)
        return found

    async def find_wrong(self, loaded: LoadedDefinition, variables: bytes) -> str | None:
        """Why a durable workflow does not take these variables, as far as that is known. It names no value, as
        it is kept in clear."""
        if loaded.code_type is None:
            return None
        async with self.connect() as connection:
            wrong = await self._definitions.signatures.problem_of(connection, loaded.code_type, variables)
        self.note(int(wrong is not None))
        return None if wrong is None else wrong.without_value

    async def find_earlier(self, call: ChildStart) -> int | None:
        """The instance that goes on or has completed, of those that an entry of a call started before."""
        found = None
        if call.entry is not None:
            async with self.connect() as connection:
                found = await calls.earlier_child(connection, call.token_id, call.entry)
        self.note(found)
        return found

    async def may_keep_raw(self) -> bool:
        """Return whether a raw result may be kept: not while an engine lives that would forget it."""
        async with self.connect() as connection:
            try:
                await require_version(connection, RAW_RESULTS_VERSION)
            except Conflict:
                found = False
            else:
                found = True
        self.note(int(found))
        return found


class Answers:
    """What one advance of an instance has asked for until now; ``kept`` is what was read of it with its locks."""

    def __init__(self, loader: ContextLoader, instance: int, kept: KeptItems) -> None:
        self._loader = loader
        self._instance = instance
        self._collected = kept.collected
        self.items = dict(kept.items)
        self.results: dict[int, dict[int, bytes]] = {}
        self.completions: dict[Question, CompletionAnswer] = {}
        self.raw: dict[int, bytes] = {}

    async def read(self, needed: ItemsNeeded | ResultsNeeded | RawNeeded | CompletionsNeeded) -> None:
        """Read it: then advance again. Raises KeyMissing, and CompletionsNeeded for what is still to be written."""
        async with self._loader.connect() as connection:
            match needed:
                case ItemsNeeded():
                    found = await for_each.next_items(connection, self._instance, needed.token, needed.first)
                    if (needed.token, needed.first) not in found:
                        raise KeyMissing(
                            "the variables of an item can't be read: this engine lacks a key (encryption_keys)"
                        )
                    self.items |= found
                case ResultsNeeded():
                    written = await for_each.results(connection, self._instance, needed.token)
                    decided = {item: value for (id, item), value in self._collected.items() if id == needed.token}
                    self.results[needed.token] = written | decided
                case RawNeeded():
                    result = await compensation.raw_result(connection, self._instance, needed.position)
                    if result is None:
                        raise Conflict("the result of the step that is done is not kept any more: skip the step")
                    self.raw[needed.position] = result
                case CompletionsNeeded():
                    if not self._loader.first:
                        raise needed
                    answer = await compensation.find(connection, self._instance, needed.question)
                    self._loader.note(answer.position)
                    self.completions[needed.question] = answer
