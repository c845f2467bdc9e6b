"""The verdict of `python -m chaos` can fail: whatever is wrong in the database or the journals, it says so."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from chaos import unkeyed
from chaos.journal import Journal, read_journals
from chaos.verdict import RULES, judge
from chaos.worker_process import STEPS
from chaos.workflows import WORKFLOWS
from penstock.wire.edits import TokenMove
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver

__all__ = ["make_driver"]


class Played:
    """What a load and a worker would have noted, of instances that went as they should."""

    def __init__(self, driver: Driver, directory: Path) -> None:
        self.driver = driver
        self.directory = directory
        self.journal = Journal(directory / "all.jsonl")

    async def start(self, workflow: str) -> str:
        key = f"key-{workflow}"
        self.journal.note("starting", key=key)
        view = await self.driver.start(workflow, {"number": 1}, business_key=key, idempotency_key=key)
        self.journal.note("started", key=key, workflow=workflow, instance=view.id)
        return view.id

    async def work(self, *job_types: str, declined: str = "") -> None:
        """Do all jobs there are, until there are none; one step fails for good."""
        while jobs := await self.driver.poll(*job_types, worker="w", n=50):
            for job in jobs:
                seen = {name: value for name, value in msgspec.json.decode(job.variables).items() if name in STEPS}  # pyright: ignore[reportArgumentType] - text in the engine
                about = {"worker": "w", "job": job.id, "attempt": job.attempt}
                self.journal.note(
                    "effect", instance=job.instance_id, step=job.step_id, seen=seen, waited_s=0.0, **about
                )
                if job.step_id == declined:
                    await self.driver.fail(job, retryable=False)
                    continue
                await self.driver.complete(job, {job.step_id: f"w:{job.attempt}"}, attempt=job.attempt)
                self.journal.note("answer", call="complete", outcome="ok", **about)

    def judge(self) -> list[str]:
        return judge(self.driver.dsn, self.directory)[0]

    def change(self, event: str, /, **fields: Any) -> None:
        """Rewrite the first event of that kind (of an effect: with that step), or take it out."""
        events = read_journals(self.directory)
        step = fields.get("step") if event == "effect" else None
        index = next(
            number
            for number, each in enumerate(events)
            if each["event"] == event and (step is None or each["step"] == step)
        )
        if fields:
            events[index] |= fields
        else:
            del events[index]
        lines = b"".join(msgspec.json.encode(each) + b"\n" for each in events)
        (self.directory / "all.jsonl").write_bytes(lines)


@pytest.fixture
async def played(make_driver: MakeDriver, tmp_path: Path) -> Played:
    driver = make_driver()
    for workflow in WORKFLOWS.values():
        await driver.upload(workflow.definition)
    played = Played(driver, tmp_path)
    for name in ("line", "fork", "chained"):
        await played.start(name)
    await played.work("steady", "batch", "sdk")
    asked = await played.start("asked")
    await driver.finish_task(asked, "ask", {"ask": "user"})
    played.journal.note("task finished", instance=asked, step="ask")
    await played.work("steady")
    await played.start("each")
    await played.work("batch", "sdk")
    stuck = await played.start("stuck")
    await played.work("sdk")
    await driver.engine.repair.move(stuck, TokenMove("stuck", "go"))
    played.journal.note("mended", instance=stuck, step="stuck")
    await played.work("batch")
    await played.start("saga")
    await played.work("steady", "batch", "sdk", declined="card")
    cancelled = await played.start("signalled")
    played.journal.note("cancelling", instance=cancelled)
    await driver.cancel(cancelled)
    played.journal.note("cancelled", instance=cancelled)
    played.journal.close()
    return played


@pytest.fixture
def sql(played: Played) -> Generator[psycopg.Connection[Any]]:
    """For what breaks the database; repaired before the engine's own tests of invariants look."""
    with psycopg.connect(played.driver.dsn, autocommit=True) as connection:
        yield connection


async def test_what_went_well_is_not_complained_of(played: Played) -> None:
    assert played.judge() == []


JOURNAL: dict[str, tuple[str, dict[str, Any], str]] = {
    "a start that was lost": ("starting", {"key": "lost"}, "key lost started 0 instances"),
    "a start that was answered with another id": ("started", {"instance": "1"}, "was answered with"),
    "an effect that nobody had": ("effect", {}, "which nobody did"),
    "a worker that saw too little": ("effect", {"step": "third", "seen": {}}, "did not see ['first', 'second']"),
    "a worker that saw something else": ("effect", {"seen": {"second": "v:1"}}, "saw {'second': 'v:1'}"),
    "an answer that is not true": ("answer", {"attempt": 2}, "in the history it is attempt 1 of w"),
    "an answer to nobody's job": ("answer", {"job": "1-1-1"}, "is not in the history"),
    "a refusal that makes no sense": ("answer", {"outcome": "not-found"}, "was answered with not-found"),
    "a cancel that nobody asked for": ("cancelling", {}, "nobody cancelled signalled"),
    "a user task that was not taken": ("task finished", {"step": "other"}, "is not in the history"),
    "a step that nobody was helped past": ("mended", {"step": "begin"}, "was mended, and skipped 0 times"),
    "a call that was refused": ("started", {"event": "surprise", "call": "poll", "outcome": "x"}, "poll: x"),
}


@pytest.mark.parametrize("name", JOURNAL)
async def test_what_a_journal_knows_better_is_found(played: Played, name: str) -> None:
    event, fields, expected = JOURNAL[name]
    played.change(event, **fields)
    assert any(expected in sentence for sentence in played.judge()), played.judge()


async def test_a_job_of_a_cancelled_instance_is_found(played: Played) -> None:
    (cancelled,) = (event for event in read_journals(played.directory) if event["event"] == "cancelled")
    played.change("effect", instance=cancelled["instance"], at=cancelled["at"] + 1)
    assert any("after its instance was cancelled" in sentence for sentence in played.judge())


async def test_two_attempts_that_were_both_taken_are_found(played: Played) -> None:
    (first, *_) = (event for event in read_journals(played.directory) if event["event"] == "answer")
    extra = [{**first, "attempt": 7}, {**first, "outcome": "lease-lost"}]
    (played.directory / "more.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in extra))
    said = "\n".join(played.judge())
    assert "the completions of attempts [1, 7]" in said
    assert "was taken and refused" in said


async def test_an_attempt_handed_out_twice_is_found(played: Played) -> None:
    (first, *_) = (event for event in read_journals(played.directory) if event["event"] == "effect")
    (played.directory / "more.jsonl").write_bytes(msgspec.json.encode({**first, "worker": "v"}) + b"\n")
    assert any("was handed to ['v', 'w']" in sentence for sentence in played.judge())


DATABASE = {
    "a completed step more than once": (
        (
            "INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, attempt, step, kind, worker)"
            " SELECT instance_id, pos + 100000, token_id, seq + 100000, started_at, ended_at, attempt, step, kind,"
            " worker FROM history WHERE kind = 1 LIMIT 1"
        ),
        "DELETE FROM history WHERE pos > 100000",
        "did steps more than once",
    ),
    "a variable that is another one": (
        "UPDATE instance SET overlay = '{\"first\": \"v:9\"}', folded_pos = 100000000 WHERE business_key = 'key-line'",
        "UPDATE instance SET overlay = NULL, folded_pos = 0 WHERE business_key = 'key-line'",
        "is 'v:9', completed by w:1",
    ),
    "a chain that was followed twice": (
        (
            "UPDATE instance SET parent_id = (SELECT id FROM instance WHERE business_key = 'key-line')"
            " WHERE business_key = 'key-fork'"
        ),
        "UPDATE instance SET parent_id = NULL WHERE business_key = 'key-fork'",
        "started 1 other workflows",
    ),
    "what was done and never undone": (
        "UPDATE history SET kind = 3 WHERE kind = 6 AND pos = (SELECT max(pos) FROM history WHERE kind = 6)",
        "UPDATE history SET kind = 6 WHERE kind = 3 AND token_id IN (SELECT token_id FROM compensation)",
        "flight was done 1 times and undone 0 times",
    ),
    "a list that lost an item": (
        (
            "UPDATE instance SET overlay = '{\"gathered\": [2, 3]}', folded_pos = 100000000"
            " WHERE business_key = 'key-each'"
        ),
        "UPDATE instance SET overlay = NULL, folded_pos = 0 WHERE business_key = 'key-each'",
        "gathered [2, 3], not [2, 3, 4, 5, 6, 7, 8]",
    ),
    "a row that is left over": (
        "INSERT INTO buffered_signal VALUES (1, 1, 0, now(), '{}')",
        "DELETE FROM buffered_signal",
        "1 rows are left in buffered_signal",
    ),
}


@pytest.mark.parametrize("name", DATABASE)
async def test_what_the_database_has_wrong_is_found(played: Played, sql: psycopg.Connection[Any], name: str) -> None:
    breaking, repairing, expected = DATABASE[name]
    sql.execute(breaking.encode())
    found = played.judge()
    sql.execute(repairing.encode())
    assert any(expected in sentence for sentence in found), found


def test_every_rule_has_a_sentence() -> None:
    assert all(rule.__doc__ for rule in RULES)


@pytest.mark.parametrize(
    ("done", "found", "expected"),
    [
        ({"1"}, {"1": 1}, []),
        (set(), {}, []),
        (set(), {"1": 1}, []),
        ({"1"}, {}, ["start 1 without a key, answered, was done 0 times"]),
        ({"1"}, {"1": 2}, ["start 1 without a key, answered, was done 2 times"]),
        (set(), {"1": 2}, ["start 1 without a key, not answered, was done 2 times"]),
        (set(), {"2": 1}, ["start 2 was done 1 times, and nobody asked for it"]),
    ],
)
def test_what_has_no_key_is_counted(done: set[str], found: dict[str, int], expected: list[str]) -> None:
    assert list(unkeyed.compare("start", ["1"], done, found)) == expected
