"""Waits for messages in an upload and in one advance, and which message is for which wait."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.core.advance.effect import MessageWait
from penstock.core.advance.event import MessageReceived
from penstock.core.graph.definition import InvalidDefinition
from penstock.core.parsing.parsing import parse_definition
from penstock.core.rules.correlation import (
    RECEIVERS_MAX,
    Closing,
    Correlation,
    TooManyWaits,
    Wait,
    correlate,
    give,
)
from penstock.core.rules.state import HistoryKind, InstanceStatus
from penstock.testing.definitions import Json, definition, end, timer
from tests.core.machine import Machine
from tests.shapes import gateway, joining, task, wait

PAID = ("paid", "7")


def awaiting(step_id: str = "w", key: object = "${order}", **fields: Any) -> Json:
    return wait(step_id, message={"name": "paid", "correlationKey": key}, **fields)


def problems(**fields: Any) -> list[str]:
    with pytest.raises(InvalidDefinition) as caught:
        parse_definition(definition({**wait("w"), **fields}, end()))
    return [str(problem) for problem in caught.value.problems]


def test_an_upload_is_told_all_problems_of_a_message() -> None:
    assert problems(message={"name": "", "correlationKey": "${1 +}", "surprise": 1}) == [
        "steps[0].message.name: required",
        "steps[0].message.correlationKey: unexpected } (line 1, column 6 of `${1 +}`)",
        "steps[0].message.surprise: unknown field",
    ]
    assert problems(message={"name": "n" * 257, "correlationKey": "k" * 257}) == [
        "steps[0].message.name: longer than 256 characters",
        "steps[0].message.correlationKey: longer than 256 characters",
    ]
    assert problems(message=[]) == ["steps[0].message: must be an object, not an array"]


def test_a_message_goes_with_all_else_that_ends_a_wait() -> None:
    given = awaiting(duration="PT1H", buffer=True, boundaryEvents=[timer("end", "PT1M")])
    parsed = parse_definition(definition(given, end()))
    assert json.loads(parsed.content)["steps"][0]["message"] == {"name": "paid", "correlationKey": "${order}"}
    assert parse_definition(parsed.content.encode()) == parsed


def test_a_message_of_another_step_is_ignored() -> None:
    parsed = parse_definition(definition({**task("a"), "message": {"name": ""}}, end()))
    assert parsed.steps[0].message is None


def test_a_wait_that_is_entered_waits_for_its_message() -> None:
    machine = Machine(definition(awaiting(), end()), {"order": 7})
    token = machine.at("w")
    assert machine.last.subscribed == [MessageWait(token.id, token.seq, "paid", "7")]
    machine.apply(MessageReceived(token.id, 5, "paid", "ann", b'{"sum": 3}'))
    assert machine.last.received == [5]
    assert machine.last.unsubscribed == [(token.id, token.seq)]
    assert machine.variables == {"order": 7, "sum": 3}
    closed = machine.history[-2]
    assert (closed.kind, closed.worker) == (HistoryKind.COMPLETED, "ann")


@pytest.mark.parametrize("order", [True, None, 1.5, "", "x" * 257, [1]])
def test_a_key_that_is_none_fails_the_instance(order: object) -> None:
    machine = Machine(definition(awaiting(), end()), {"order": order})
    assert machine.instance.status is InstanceStatus.FAILED
    assert "correlationKey" in (machine.instance.failure or "")
    assert machine.last.subscribed == []


def test_whatever_closes_the_wait_ends_its_waiting() -> None:
    interrupted = Machine(
        definition(awaiting(boundaryEvents=[timer("end", "PT1M", interrupting=True)]), end()), {"order": "7"}
    )
    token = interrupted.at("w")
    interrupted.fire("w")
    assert interrupted.last.unsubscribed == [(token.id, token.seq)]
    cancelled = Machine(definition(awaiting(), end()), {"order": "7"})
    cancelled.cancel()
    assert len(cancelled.last.unsubscribed) == 1


def test_a_wait_that_ends_with_its_own_advance_never_waited() -> None:
    ends = definition(gateway("fork", "w", "stop"), awaiting(next_step="join"), end("stop"), joining(), end())
    machine = Machine(ends, {"order": "7"})
    assert machine.instance.status is InstanceStatus.COMPLETED
    assert (machine.last.subscribed, machine.last.unsubscribed) == ([], [])


def test_a_retry_waits_again_with_the_key_of_now() -> None:
    failing = definition(gateway("fork", "w", "a"), awaiting(next_step="join"), task("a", "join"), joining(), end())
    machine = Machine(failing, {"order": "7"})
    machine.claim("a")
    machine.fail("a", retryable=False)
    assert len(machine.last.unsubscribed) == 1
    machine.retry()
    token = machine.at("w")
    assert machine.last.subscribed == [MessageWait(token.id, token.seq, "paid", "7")]


# -- who gets what

FIRST, SECOND = Wait(1, 11, 100), Wait(2, 12, 200)


def test_the_oldest_wait_gets_the_oldest_message() -> None:
    decided = correlate({PAID: [SECOND, FIRST]}, {PAID: [8, 9]})
    assert decided == Correlation(given={FIRST: 8, SECOND: 9}, taken=[8, 9])


def test_messages_of_other_names_and_keys_stay_apart() -> None:
    assert correlate({PAID: [FIRST]}, {("paid", "8"): [8], ("sent", "7"): [9]}) == Correlation()


def test_a_closed_wait_leaves_its_message_to_the_next() -> None:
    closing = Closing(FIRST.token_id, FIRST.seq, PAID, 8)
    assert correlate({PAID: [SECOND]}, {}, [closing]) == Correlation(given={SECOND: 8}, taken=[])
    assert correlate({}, {}, [closing]) == Correlation(kept=[8])
    assert correlate({PAID: [SECOND]}, {}, [closing], received=[8]) == Correlation(done=[8])


def test_a_wait_that_is_closing_gets_nothing() -> None:
    assert correlate({PAID: [FIRST]}, {PAID: [8]}, [Closing(FIRST.token_id, FIRST.seq, PAID, None)]) == Correlation()


def test_what_has_expired_meanwhile_is_nobodys() -> None:
    closing = Closing(FIRST.token_id, FIRST.seq, PAID, 8, expired=True)
    assert correlate({PAID: [SECOND]}, {}, [closing]) == Correlation(done=[8])


def test_a_message_for_all_is_not_handed_on() -> None:
    closing = Closing(FIRST.token_id, FIRST.seq, PAID, 8, for_all=True)
    assert correlate({PAID: [SECOND]}, {}, [closing]) == Correlation(perhaps_done=[8])


def test_a_new_message_goes_to_one_or_to_all() -> None:
    waits = [SECOND, FIRST]
    assert give(waits, 8, for_all=False) == {FIRST: 8}
    assert waits == [SECOND]
    assert give(waits, 9, for_all=True) == {SECOND: 9}
    assert give(waits, 10, for_all=False) == {}
    with pytest.raises(TooManyWaits):
        give([Wait(n, n, n) for n in range(RECEIVERS_MAX + 1)], 11, for_all=True)
