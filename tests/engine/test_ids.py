"""Ids as text: each has one, and nothing else is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.requests import ids
from penstock.errors import NotFound

numbers = st.integers(0, 2**63 - 1)


@given(numbers, numbers, numbers)
def test_a_job_id_is_read_as_it_was_shown(instance: int, token: int, seq: int) -> None:
    assert ids.read_job(ids.show_job(instance, token, seq)) == (instance, token, seq)
    assert ids.read_instance(ids.show_instance(instance)) == instance


def test_ids_given_to_workers_are_read_again_and_again() -> None:
    for number in range(2 * ids.GIVEN_MAX_COUNT + 5):  # more than are remembered
        shown = ids.show_given_job(number, number + number % 2, 7)
        assert shown == ids.show_job(number, number + number % 2, 7)
        if number % 7 == 0:
            for _ in range(3):
                key = ids.read_job(shown)
                assert (key.instance, key.token, key.seq) == (number, number + number % 2, 7)
    assert len(ids._given) <= ids.GIVEN_MAX_COUNT
    assert ids.read_job(ids.show_job(3, 3, 7)).lock_order == (False, 3, 3)


def test_a_full_millisecond_borrows_from_the_next() -> None:
    """4,096 ids have a number of their own in it; the engine's own number stands in all of them."""
    source = ids.IdSource(6, lambda: ids.EPOCH_MS + 1_000)
    made = [source.next() for _ in range(10_000)]
    assert made == sorted(set(made))
    assert {id >> 12 & 1_023 for id in made} == {6}
    assert [made[0] >> 22, made[-1] >> 22] == [1_000, 1_002]


@pytest.mark.parametrize(
    "text",
    [
        "", "1-2", "1-2-3-4", "1-2-", "-1-2-3", "1--2-3", "01-2-3", "1-2-03", "1F-2-3", "1-2-3\n", " 1-2-3", "1-2-3 ",
        "1_0-2-3", "+1-2-3", "0x1-2-3", "1-2-3g", "\N{ARABIC-INDIC DIGIT ONE}-2-3", "\N{FULLWIDTH DIGIT ONE}-2-3",
        "1-2-8000000000000000", "ffffffffffffffff-1-1", "1-2-1" + "0" * 16, "1-2-" + "1" * 10_000, "1-2-3\0", "\ud800",
    ],
)  # fmt: skip
def test_what_never_was_one_is_not_found(text: str) -> None:
    with pytest.raises(NotFound):
        ids.read_job(text)
    with pytest.raises(NotFound):
        ids.read_instance(text)


@pytest.mark.parametrize("text", ["01", "00", "1F"])
def test_an_instance_id_has_one_text(text: str) -> None:
    with pytest.raises(NotFound):
        ids.read_instance(text)
