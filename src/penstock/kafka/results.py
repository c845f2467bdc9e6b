"""What aiokafka's errors mean for a record: the one table of outcomes. Pure.

What is not in it is UNKNOWN: the record may have arrived, and is sent again.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.kafka.record import PublishOutcome, Result

TIMED_OUT: Final = "REQUEST_TIMED_OUT"
NOT_CONNECTED: Final = "NOT_CONNECTED"
MESSAGE_TOO_LARGE: Final = "MESSAGE_TOO_LARGE"

_NAMES: Final = {  # aiokafka's class, where Kafka's own name is another
    "KafkaTimeoutError": TIMED_OUT,
    "TimeoutError": TIMED_OUT,
    "RequestTimedOutError": TIMED_OUT,
    "MessageSizeTooLargeError": MESSAGE_TOO_LARGE,
    "RecordListTooLargeError": "RECORD_LIST_TOO_LARGE",
    "InvalidTopicError": "INVALID_TOPIC_EXCEPTION",
    "CorruptRecordException": "CORRUPT_MESSAGE",
    "KafkaConnectionError": NOT_CONNECTED,
    "NodeNotReadyError": NOT_CONNECTED,
}
_REFUSES_TOPIC: Final = frozenset(
    {
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INVALID_TOPIC_EXCEPTION",
        "TOPIC_AUTHORIZATION_FAILED",
        "POLICY_VIOLATION",
        "LEADER_NOT_AVAILABLE",
    }
)
_REFUSES_RECORD: Final = frozenset(
    {MESSAGE_TOO_LARGE, "RECORD_LIST_TOO_LARGE", "CORRUPT_MESSAGE", "INVALID_TIMESTAMP", "INVALID_RECORD"}
)
# Without an answer from a broker.
UNANSWERED: Final = frozenset({TIMED_OUT, NOT_CONNECTED})


def code_of(error: BaseException) -> str:
    """Kafka's name of an error, such as ``UNKNOWN_TOPIC_OR_PARTITION``."""
    name = type(error).__name__
    return _NAMES.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Error")).upper()


def result_of(error: BaseException) -> Result:
    """What became of a record that ended with this error."""
    return refusal(code_of(error), str(error) or type(error).__name__)


def refusal(code: str, reason: str) -> Result:
    """What an error of this name says about a record."""
    if code in _REFUSES_TOPIC:
        return Result(PublishOutcome.TOPIC_REFUSED, code, reason)
    if code in _REFUSES_RECORD:
        return Result(PublishOutcome.RECORD_REFUSED, code, reason)
    return Result(PublishOutcome.UNKNOWN, code, reason)
