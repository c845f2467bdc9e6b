"""One line per message and interval, and the count of what was left out."""

from __future__ import annotations

import logging

import pytest

from penstock.log.throttle import MAX_MESSAGES, ThrottledLogger, throttle


@pytest.fixture
def talkative():
    logger = logging.getLogger("talkative.library")
    yield logger
    logging.getLogger("talkative").handlers.clear()
    logging.getLogger("talkative").propagate = True


def test_repeats_are_counted_instead_of_written(caplog):
    now = 0.0
    handler = ThrottledLogger(interval_s=10, clock=lambda: now)

    def say(text: str, *arguments: object) -> None:
        handler.handle(logging.LogRecord("lib", logging.ERROR, "", 1, text, arguments, None))

    for port in range(3):
        say("no connection to %d", port)
    say("something else")
    now = 10.0
    say("no connection to %d", 9)
    assert caplog.messages == ["no connection to 0", "something else", "no connection to 9 (2 more in between)"]


def test_a_throttle_covers_loggers_below_and_can_be_repeated(talkative, caplog):
    throttle("talkative")
    throttle("talkative")
    for _ in range(5):
        talkative.error("again")
    assert caplog.messages == ["again"]


def test_a_flood_of_different_messages_takes_bounded_memory():
    handler = ThrottledLogger()
    for n in range(3 * MAX_MESSAGES):
        handler.handle(logging.LogRecord("lib", logging.DEBUG, "", 1, f"message {n}", (), None))
    assert len(handler._seen) <= MAX_MESSAGES
