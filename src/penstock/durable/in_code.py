"""What a workflow function has beside its code: the schedule that starts it, and the limits of its queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, cast

import msgspec

from penstock.durable.codec import shown
from penstock.durable.given import check_flag, check_int, check_text, wrong
from penstock.user_text import repr_of
from penstock.wire.queue import QueuePolicy, Rate
from penstock.wire.schedule import ScheduleSpec

LIMIT_MAX = 1_000_000
QUEUE_NAME_MAX_CHARS = 256


class Queue(msgspec.Struct, frozen=True):
    """A queue with its limits, as ``@workflow(queue=Queue("crawl", concurrency=10))`` has it in code.

    An App puts it as it connects. From an operator's change on the queue stays as the operator has it.

    Args:
        name: of the queue.
        concurrency: so many runs are active at once.
        concurrency_per_key: so many of each flow key.
        rate: how often runs become active (`Rate`).
        rate_per_key: how often those of each flow key do.
        fair: whether flow keys take turns; True by default.
        weights: keys that take several turns at a time.
        runs: so many runs are open, from when they first become active to their end.
    """

    name: str
    concurrency: int | None = None
    concurrency_per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None
    fair: bool = True
    weights: Mapping[str, int] = {}
    runs: int | None = None

    def policy(self) -> QueuePolicy:
        """Return its limits, as `Client.put_queue` takes them."""
        return QueuePolicy(
            [],
            concurrency=self.concurrency,
            concurrency_per_key=self.concurrency_per_key,
            rate=self.rate,
            rate_per_key=self.rate_per_key,
            fair=self.fair,
            weights=dict(self.weights),
            runs=self.runs,
        )

    def check(self) -> None:
        """Raise TypeError or ValueError for what can't be."""
        check_text("queue", self.name, QUEUE_NAME_MAX_CHARS, needed=True)
        for name in ("concurrency", "concurrency_per_key", "runs"):
            if getattr(self, name) is not None:
                check_int(f"queue: {name}", getattr(self, name), 1, LIMIT_MAX)
        for name in ("rate", "rate_per_key"):
            given: object = getattr(self, name)
            if given is not None and not isinstance(given, Rate):
                raise TypeError(wrong(f"queue: {name}", given, 'a Rate, as Rate(10, "PT1S")'))
        check_flag("queue: fair", self.fair)


def queue_in(given: object) -> tuple[str | None, QueuePolicy | None]:
    """Return the name of a workflow's queue, and its limits where the code has them. Raises TypeError, ValueError."""
    if isinstance(given, Queue):
        given.check()
        return given.name, given.policy()
    check_text("queue", cast("str | None", given))
    return cast("str | None", given), None


def schedule_in(given: object) -> ScheduleSpec | None:
    """Return the schedule of a workflow. Raises TypeError, ValueError."""
    if given is None:
        return None
    if isinstance(given, str):
        given = ScheduleSpec(cron=[given])
    if not isinstance(given, ScheduleSpec):
        raise TypeError(wrong("schedule", given, 'a cron expression, as "0 8 * * mon", or a ScheduleSpec'))
    if given.definition_id:
        raise ValueError(
            f"schedule: definition_id is {shown(repr_of(given.definition_id))}: a schedule in code starts its own "
            "workflow. Leave it out"
        )
    if given.variables is not None and not isinstance(given.variables, Mapping):
        raise TypeError(wrong("schedule: variables", given.variables, "a mapping of arguments by parameter name"))
    return given


def text_of_body(body: ScheduleSpec | QueuePolicy | None) -> bytes:
    """JSON, empty where there is none."""
    return b"" if body is None else msgspec.json.encode(body)


class HasQueue(Protocol):
    """A workflow."""

    name: str
    queue: str | None
    queue_policy: QueuePolicy | None


def check_queues(workflows: Iterable[HasQueue]) -> None:
    """Raise ValueError where two workflows of an App have other limits for one queue."""
    found: dict[str, HasQueue] = {}
    for each in workflows:
        if each.queue is None or each.queue_policy is None:
            continue
        other = found.setdefault(each.queue, each)
        if other.queue_policy != each.queue_policy:
            raise ValueError(
                f"queue {each.queue!r} has other limits in workflow {other.name!r} than in {each.name!r}: make one "
                f"Queue({each.queue!r}, …), and give it to both"
            )
