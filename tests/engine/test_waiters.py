"""Parked polls, as a book of slots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from penstock.engine.jobs.inline_jobs import InlineJobs, KnownPoll, PendingPoll
from penstock.engine.queues.waiters import Waiters
from penstock.engine.requests.answers import AnswerMemory, MemoryReservation


def test_no_slot_is_reserved_without_memory_for_the_answer() -> None:
    memory = AnswerMemory(1_000_000)
    waiters = Waiters(memory, 1_000_000)
    poll = PendingPoll(KnownPoll("w", ("work",), 3, 30.0, 20.0), MemoryReservation(memory), cast(Any, None))
    waiters.park(poll)
    memory.used_bytes = 800_000
    assert waiters.reserve("work") is None
    memory.used_bytes = 799_999
    assert waiters.reserve("work") is poll


def test_a_poll_that_ends_takes_no_other_slot() -> None:
    """Its time is over, or its client left, while two slots are being filled: one that is given up stays empty. Else
    the poll goes on waiting, and a job is leased to who left."""
    answered: list[PendingPoll] = []
    memory = AnswerMemory(1_000_000)
    waiters = Waiters(memory, 1_000_000)
    polls = SimpleNamespace(
        draining=False, waiters=waiters, activity=SimpleNamespace(observe_answered=lambda worker: answered.append(poll))
    )
    metrics = SimpleNamespace(empty_polls=SimpleNamespace(inc=int))
    settings = SimpleNamespace(through_kafka=False, poll_max_jobs=10)
    jobs = InlineJobs(*cast(Any, (settings, metrics, None, polls, None)))
    caller = SimpleNamespace(go_on=lambda: jobs.take(poll, ends=False, gone=False))
    poll = PendingPoll(KnownPoll("w", ("work",), 3, 30.0, 20.0), MemoryReservation(memory), cast(Any, caller))
    waiters.park(poll)
    assert waiters.reserve("work") is waiters.reserve("work") is poll
    assert jobs.take(poll, ends=True, gone=False) is None
    waiters.give_up(poll)
    assert waiters.reserve("work") is None
    assert answered == []
    waiters.give_up(poll)
    assert answered == [poll]
    assert len(waiters) == 0
