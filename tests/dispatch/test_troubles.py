"""How long what has trouble waits."""

from __future__ import annotations

import pytest

from penstock.kafka import troubles
from penstock.kafka.record import PublishOutcome
from penstock.kafka.troubles import Troubles


@pytest.mark.parametrize(("outcome", "longest_s"), [(PublishOutcome.UNKNOWN, 5), (PublishOutcome.TOPIC_REFUSED, 30)])
def test_pauses_of_a_job_type_double_until_a_success(outcome: PublishOutcome, longest_s: float) -> None:
    waiting, pauses, now = Troubles(), [], 0.0
    for _ in range(12):
        waiting.back_off(1, outcome, now)
        pauses.append(round(waiting.next_try_at() - now, 3))
        now = waiting.next_try_at()
    assert pauses == [round(min(0.1 * 2**n, longest_s), 3) for n in range(12)]
    assert waiting.forget_type(1)
    assert not waiting.forget_type(1)
    waiting.back_off(1, outcome, now)
    assert waiting.next_try_at() == pytest.approx(now + 0.1)


def test_a_job_type_without_an_answer_is_due_later() -> None:
    waiting = Troubles()
    waiting.back_off(1, PublishOutcome.UNKNOWN, 0)
    assert waiting.take_due(0.05) == []
    assert waiting.take_due(0.1) == [1]
    assert waiting.take_due(0.15) == []
    assert waiting.take_due(0.2) == [1]


def test_rows_wait_in_bounded_number_and_are_forgotten_when_unused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(troubles, "QUARANTINE_MAX_ROWS", 2)
    waiting = Troubles()
    assert [waiting.quarantine_row(row, 0) for row in (1, 2, 3)] == [True, True, False]
    assert waiting.quarantined_rows(0.05) == [1, 2]
    assert waiting.quarantined_rows(0.1) == []
    assert waiting.quarantine_row(1, 0.1)  # tried again, refused again
    assert waiting.quarantined_rows(0.25) == [1]
    waiting.forget_row(1)
    assert waiting.quarantine_row(3, 0.25)
    assert waiting.quarantined_rows(100) == []
    assert [waiting.quarantine_row(row, 100) for row in (4, 5)] == [True, True]  # those before were void
