"""A set is recorded in one order, whatever the process. Starts and replays compare arguments without an order of sets
and dictionaries.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import psycopg
import pydantic
import pytest

from penstock.client.errors import IdempotencyConflict
from penstock.durable import App, step, workflow
from penstock.durable.codec import decode, digest_of, encode, former_digest_of
from penstock.engine.queues.journal_items import RULES_VERSION
from penstock.kernel.errors import OtherArguments
from penstock.kernel.record import JournalKind, Record
from penstock.store.db.connection import TrioConnection
from penstock.store.rows.engines import require_version
from penstock.testing import run_workflow
from penstock.testing.durable import Memory

# pyright: reportUnknownMemberType=false, reportUntypedBaseClass=false

NAMES = {"ann", "bob", "cleo", "dora", "emil"}


class Colors(msgspec.Struct, frozen=True):
    names: frozenset[str]
    more: dict[str, set[int]] = {}


@dataclass(frozen=True)
class Team:
    names: frozenset[str]
    teams: tuple[frozenset[str], ...] = ()


@dataclass
class Deep:
    colors: list[Colors] = field(default_factory=list)


class Model(pydantic.BaseModel):
    names: set[str]
    inner: Model | None = None
    groups: dict[str, list[set[str]]] = {}


class Pair(NamedTuple):
    one: set[str]
    two: int


PROGRAM = """
import sys
from penstock.durable.codec import encode
from tests.reports.test_sets_have_one_order import values
sys.stdout.write("\\n".join(encode(each, "it") for each in values()))
"""


def values() -> list[Any]:
    """With sets in all places."""
    names = frozenset(NAMES)
    model = Model(names=set(NAMES), inner=Model(names={"x", "y", "z"}), groups={"b": [set(NAMES)], "a": [set()]})
    return [
        set(NAMES), names, [set(NAMES), 1], {"b": set(NAMES), "a": [(set(NAMES),)]},
        Colors(names, {"z": {3, 20, 100}, "a": {1}}),
        Team(names, (names, frozenset("abc"))), Deep([Colors(names)]), model, {"model": model}, Pair(set(NAMES), 1),
        {frozenset(("a", "b")), frozenset(("c", "d")), frozenset()}, {Team(names), Team(frozenset("xyz"))},
        {1, 2, 10, 100},
        {dt.date(2030, 1, each) for each in range(1, 9)},
    ]  # fmt: skip


@pytest.mark.slow(reason="three processes")
def test_each_process_writes_the_same_text():
    def write(seed: str) -> str:
        env = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True
        ).stdout

    written = {write(seed) for seed in ("1", "2", "3")}
    assert len(written) == 1
    assert written.pop().splitlines()[0] == '["ann","bob","cleo","dora","emil"]'


def test_dictionaries_keep_their_order_and_values_their_type():
    assert encode({"b": {"z", "a"}, "a": 1}, "it") == '{"b":["a","z"],"a":1}'
    assert decode(encode({"b": {2, 1}}, "it"), dict[str, set[int]]) == {"b": {1, 2}}
    team = Team(frozenset(NAMES))
    encode(team, "it")
    assert type(team.names) is frozenset
    assert decode(encode(team, "it"), Team) == team


def test_a_digest_knows_no_order():
    assert digest_of('{"o":{"b":1,"a":[1,2]}}') == digest_of('{"o":{"a":[1,2],"b":1}}')
    assert digest_of('{"a":1,"b":2}') == digest_of('{"b":2,"a":1}')
    assert digest_of('{"o":[1,2]}') != digest_of('{"o":[2,1]}')
    assert former_digest_of('{"a":1,"b":2}') != former_digest_of('{"b":2,"a":1}')


async def test_the_same_set_starts_the_same_run(database_dsn: str):
    @workflow
    async def notify(names: set[str], amounts: dict[str, int]) -> list[str]:
        return sorted(names) + list(amounts)

    def other_order() -> set[str]:
        """With collisions, a set's order is that in which its items came."""
        found = set[str]()
        for name in sorted(NAMES, reverse=True):
            found.add(name)
        return found

    async with App(notify, at=database_dsn) as app:
        run = await app.start(notify, set(NAMES), {"a": 1, "b": 2}, id="n")
        again = await app.start(notify, other_order(), {"b": 2, "a": 1}, id="n")
        assert run.instance_id == again.instance_id
        assert await again.result() == [*sorted(NAMES), "a", "b"]


async def test_a_start_of_before_the_upgrade_is_no_conflict(database_dsn: str, caplog: pytest.LogCaptureFixture):
    """It was stored with its set in the order of a program."""

    @workflow(name="notify")
    async def before(names: list[str]) -> None: ...

    @workflow(name="notify")
    async def after(names: set[str]) -> None: ...

    async def starts(id: str, names: set[str]) -> tuple[str, str]:
        first = await app.start(before, ["bob", "ann"], id=id)
        return first.instance_id, (await app.start(after, names, id=id)).instance_id

    with psycopg.connect(database_dsn) as connection:
        connection.execute("INSERT INTO penstock_schema (version) VALUES (20)")
    async with App(at=database_dsn) as app:
        with caplog.at_level(logging.WARNING, "penstock"):
            for id, names in (("same", {"ann", "bob"}), ("other", {"ann"})):
                one, another = await starts(id, names)
                assert one == another
        assert len([record for record in caplog.records if "other arguments" in record.getMessage()]) == 2
        async with await TrioConnection.connect(database_dsn) as connection:
            await require_version(connection, RULES_VERSION)
        assert (await app.start(after, {"ann", "bob"}, id="same")).id == "same"
        with pytest.raises(IdempotencyConflict):
            await starts("new", {"ann", "bob"})


def replayed(digest: int, rules: int, said: list[str]) -> Memory:
    @step
    async def tells(names: set[str], amounts: dict[str, int]) -> None:
        return None

    @workflow
    async def notify() -> str:
        await tells({"b", "a"}, {"y": 1, "x": 2})
        return "told"

    memory = Memory(notify, "{}", {}, "test", dt.datetime(2030, 1, 1, tzinfo=dt.UTC), None)
    memory.activation.kernel.warn = said.append  # pyright: ignore[reportAttributeAccessIssue] - it keeps all
    memory.activation.start()
    memory.deliver(Record(0, JournalKind.DONE, "/0", "tells", "null", digest, rules=rules))
    return memory


OURS = '{"names":["a","b"],"amounts":{"y":1,"x":2}}'


def test_arguments_of_an_old_record_never_block():
    said: list[str] = []
    assert replayed(former_digest_of(OURS), 0, said).activation.result is not None
    assert said == []
    other = OURS.replace('["a","b"]', '["b","a"]')  # of a process with another hash seed
    result = replayed(former_digest_of(other), 0, said).activation.result
    assert result is not None
    assert result.value == "told"
    assert [text.partition(" (")[0] for text in said] == ["tells at /0 was called with other arguments before"]


def test_arguments_of_a_new_record_are_compared_by_value():
    said: list[str] = []
    swapped = json.dumps({"amounts": {"x": 2, "y": 1}, "names": ["a", "b"]})
    assert replayed(digest_of(swapped), 1, said).activation.result is not None
    with pytest.raises(OtherArguments):
        replayed(digest_of(OURS.replace("2", "3")), 1, said)
    assert said == []


def test_a_run_with_sets_is_the_same_in_another_process():
    run = run_workflow(gives_sets, set(NAMES), shadow=True)
    assert run.result() == NAMES


@step
async def same(names: set[str]) -> set[str]:
    return names


@workflow
async def gives_sets(names: set[str]) -> set[str]:
    return await same(await same(names))
