"""Which records wait, which are out, which may be committed."""

from __future__ import annotations

import random
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.worker import kafka_ledger
from penstock.worker.kafka_ledger import DEDUPLICATION_S, Lag, Ledger
from tests.kafka.dispatches import dispatch, ref


def ids(jobs) -> list[str]:
    return [job.id for job in jobs]


def test_offsets_are_committed_up_to_the_first_unsettled_record():
    ledger = Ledger()
    for n in range(1, 5):
        ledger.add(0, 10 * n, dispatch(n), now=0)
    assert ids(ledger.take(10)) == ["j1", "j2", "j3", "j4"]
    ledger.settle(ref(2), now=0)
    ledger.settle(ref(3), now=0)
    assert ledger.to_commit() == {}
    ledger.settle(ref(1), now=0)
    assert ledger.to_commit() == {0: 31}
    ledger.committed({0: 31})
    assert ledger.to_commit() == {}
    assert ledger.uncommitted == 1


def test_the_lag_is_what_is_not_settled_and_the_age_of_the_oldest_read():
    ledger = Ledger()
    assert ledger.lag({0: 7, 1: None}, now=100.0) == Lag(0, 0.0)
    for n in (1, 2):
        ledger.add(0, n, dispatch(n), now=0, written_at=90.0 + n)
    assert ledger.lag({0: 6, 1: 9}, now=100.0) == Lag(2 + 3, 9.0)
    ledger.take(2)
    ledger.settle(ref(1), now=0)
    assert ledger.lag({0: 6}, now=100.0) == Lag(1 + 3, 8.0)
    ledger.settle(ref(2), now=0)
    assert ledger.lag({0: 6}, now=100.0) == Lag(3, 0.0)
    ledger.revoke([0])
    assert ledger.lag({}, now=100.0) == Lag(0, 0.0)


def test_an_overtaken_commit_leaves_the_later_offset_to_commit():
    ledger = Ledger()
    for n in (1, 2):
        ledger.add(0, n, dispatch(n), now=0)
    ledger.take(2)
    ledger.settle(ref(1), now=0)
    under_way = ledger.to_commit()
    ledger.settle(ref(2), now=0)
    ledger.committed(under_way)
    assert ledger.to_commit() == {0: 3}


def test_poison_is_passed_over():
    ledger = Ledger()
    ledger.add(3, 5, None, now=0)
    assert ledger.to_commit() == {3: 6}
    assert ledger.take(5) == []


def test_jobs_go_out_in_order_within_an_instance_only():
    ledger = Ledger()
    for n, instance in ((1, "a"), (2, "a"), (3, "b"), (4, "a")):
        ledger.add(0, n, dispatch(n, instance), now=0)
    assert ids(ledger.take(10)) == ["j1", "j3"]
    assert (ledger.take(10), ledger.waiting) == ([], 2)
    ledger.settle(ref(1), now=0)
    assert ids(ledger.take(10)) == ["j2"]
    ledger.settle(ref(2), now=0)
    assert ids(ledger.take(10)) == ["j4"]


def test_no_more_is_handed_out_than_asked_for():
    ledger = Ledger()
    for n in range(5):
        ledger.add(0, n, dispatch(n), now=0)
    assert ids(ledger.take(2)) == ["j0", "j1"]
    assert (ledger.waiting, ledger.uncommitted) == (3, 5)


def test_a_record_published_twice_is_one_job():
    ledger = Ledger()
    ledger.add(0, 1, dispatch(1), now=0)
    ledger.add(0, 2, dispatch(1), now=0)
    assert ids(ledger.take(10)) == ["j1"]
    assert ledger.to_commit() == {}
    ledger.settle(ref(1), now=0)
    assert ledger.to_commit() == {0: 3}
    ledger.add(0, 3, dispatch(1), now=1)
    assert (ledger.take(10), ledger.to_commit(), ledger.duplicates) == ([], {0: 4}, 2)


def test_dedup_ids_are_forgotten_by_age_and_by_number(monkeypatch):
    ledger = Ledger()
    ledger.add(0, 1, dispatch(1), now=0)
    ledger.take(1)
    ledger.settle(ref(1), now=0)
    ledger.add(0, 2, dispatch(1), now=DEDUPLICATION_S)
    assert ledger.take(1) == []
    ledger.add(0, 3, dispatch(1), now=DEDUPLICATION_S + 1)
    assert ids(ledger.take(1)) == ["j1"]

    monkeypatch.setattr(kafka_ledger, "MAX_REMEMBERED", 3)
    ledger = Ledger()
    for n in range(10):
        ledger.add(0, n, dispatch(n), now=0)
        ledger.take(1)
        ledger.settle(ref(n), now=0)
    assert len(ledger._settled_at) <= 4


def test_a_new_dispatch_of_a_job_is_another_job():
    ledger = Ledger()
    ledger.add(0, 1, dispatch(1), now=0)
    ledger.take(1)
    ledger.settle(ref(1), now=0)
    ledger.add(0, 2, dispatch(1, attempt=2, dedup_id="other"), now=1)
    assert ids(ledger.take(1)) == ["j1"]
    ledger.settle(ref(1), now=1)  # late, about the attempt before
    assert ledger.to_commit() == {0: 2}


def test_lost_partitions_take_waiting_jobs_along():
    ledger = Ledger()
    for n in (1, 2):
        ledger.add(0, n, dispatch(n), now=0)
    ledger.add(1, 7, dispatch(3), now=0)
    assert ids(ledger.take(1)) == ["j1"]
    assert ledger.has_out([0])
    assert not ledger.has_out([1])
    ledger.revoke([0])
    assert ids(ledger.take(10)) == ["j3"]
    assert ledger.partitions == [1]
    # They come back before j1 is done: it is not handed out again, its offset waits for it, j2 goes out.
    for n in (1, 2):
        ledger.add(0, n, dispatch(n), now=0)
    assert ids(ledger.take(10)) == ["j2"]
    ledger.settle(ref(2), now=0)
    assert ledger.to_commit() == {}
    ledger.settle(ref(1), now=0)
    assert ledger.to_commit() == {0: 3}


def test_what_settles_after_its_partition_went_commits_nothing():
    ledger = Ledger()
    ledger.add(0, 1, dispatch(1), now=0)
    ledger.take(1)
    ledger.revoke([0])
    ledger.settle(ref(1), now=0)
    assert (ledger.to_commit(), ledger.uncommitted, ledger.waiting) == ({}, 0, 0)
    ledger.add(0, 1, dispatch(1), now=1)
    assert (ledger.take(1), ledger.to_commit()) == ([], {0: 2})


def test_settling_what_is_not_known_changes_nothing():
    ledger = Ledger()
    ledger.settle(ref(1), now=0)
    assert ledger.to_commit() == {}


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), instances=st.integers(1, 4), steps=st.integers(1, 120))
def test_nothing_is_committed_unsettled_and_everything_in_the_end(seed, instances, steps):
    """Random reads (again from the committed offset after a rebalance), hand-outs, settlements, revocations."""
    chance = random.Random(seed)
    log = {partition: [chance.randrange(30) for _ in range(25)] for partition in (0, 1)}
    ledger, committed, read = Ledger(), defaultdict(int), defaultdict(int)
    out: list[int] = []
    done: set[int] = set()

    def numbers(partition: int) -> list[int]:
        return [2 * n + partition for n in log[partition]]  # a job has its records in one partition

    def read_some() -> None:
        partition = chance.randrange(2)
        if read[partition] < 25:
            n = numbers(partition)[read[partition]]
            ledger.add(partition, read[partition], dispatch(n, f"{partition}-{n % instances}"), now=0)
            read[partition] += 1

    def take() -> None:
        jobs = ledger.take(chance.randrange(4))
        instances = [job.instance_id for job in jobs]
        assert len(set(instances)) == len(instances)
        for job in jobs:
            n = int(job.id[1:])
            assert n not in out
            assert n not in done
            out.append(n)

    def settle() -> None:
        if out:
            n = out.pop(chance.randrange(len(out)))
            done.add(n)
            ledger.settle(ref(n), now=0)

    def commit() -> None:
        offsets = ledger.to_commit()
        for partition, offset in offsets.items():
            assert offset > committed[partition]
            assert set(numbers(partition)[:offset]) <= done
            committed[partition] = offset
        ledger.committed(offsets)

    def rebalance() -> None:
        commit()
        ledger.revoke([0, 1])
        read.update({0: committed[0], 1: committed[1]})

    for _ in range(steps):
        chance.choice((read_some, read_some, read_some, take, take, settle, settle, commit, rebalance))()
    while read[0] < 25 or read[1] < 25 or out or ledger.waiting:
        read_some()
        take()
        settle()
    commit()
    assert committed == {0: 25, 1: 25}
    assert (ledger.waiting, ledger.uncommitted, ledger.partitions) == (0, 0, [])
