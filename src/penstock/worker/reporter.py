"""Delivers results in batches: what came together while the last batch was under way goes out as the next one.

No timer and no added delay (natural batching). A result is offered until the engine has settled it: accepted, found
superseded, or refused for what it is. Repeating is safe, because every result carries its attempt. While the engine
is away results wait here; the session takes on no new jobs when too many do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import anyio

from penstock.client.backoff import RetryPauses
from penstock.client.errors import ClientError, InternalError, Unauthenticated, Unavailable
from penstock.wire.model import Completion, Failure, JobOutcome, Park
from penstock.worker.held import LeasedJob
from penstock.worker.outage import Outage
from penstock.worker.transport import outcome_of_each

ReportT = TypeVar("ReportT", bound=Completion | Failure | Park)

MAX_BATCH_ITEMS = 200
# An answer of 500 may be a passing fault of the engine, or one item that it stumbles over for ever.
MAX_INTERNAL_ERRORS_PER_ITEM = 8


class _Waiting(Generic[ReportT]):
    """A report that is not settled yet."""

    def __init__(self, held: LeasedJob, report: ReportT) -> None:
        self.held = held
        self.report = report
        self.internal_errors = 0


class Reporter(Generic[ReportT]):
    """Delivers one kind of report: completions or failures.

    Args:
        send: one exchange with the engine; one outcome per item.
        on_settled: called once per report when the engine has answered it (outcome as in ``JobOutcome``, never
            ``unavailable``), or when its delivery was given up (``invalid``, with the reason).
    """

    def __init__(
        self,
        send: Callable[[Sequence[ReportT]], Awaitable[Sequence[JobOutcome]]],
        on_settled: Callable[[LeasedJob, ReportT, JobOutcome], None],
    ) -> None:
        self._send = send
        self._on_settled = on_settled
        self._waiting: deque[_Waiting[ReportT]] = deque()
        self._in_flight = 0
        self._some = anyio.Event()
        self._none = anyio.Event()
        self._none.set()
        self._backoff = RetryPauses()
        self._outage = Outage("results wait for the engine")
        self._pause_s = 0.0

    def __len__(self) -> int:
        """Return how many reports are not settled yet."""
        return len(self._waiting) + self._in_flight

    def put_nowait(self, held: LeasedJob, report: ReportT) -> None:
        """Hand over a report. Bounded by the session, which counts the reports that are not settled."""
        if self._none.is_set():
            self._none = anyio.Event()
        self._waiting.append(_Waiting(held, report))
        self._some.set()

    async def wait_empty(self) -> None:
        """Wait until every report is settled."""
        await self._none.wait()

    async def run(self) -> None:
        """Deliver until cancelled. What is under way then may or may not have arrived."""
        while True:
            if not self._waiting:
                self._some = anyio.Event()
                await self._some.wait()
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH_ITEMS))]
            self._in_flight = len(batch)
            self._pause_s = 0.0
            again = await self._deliver(batch)
            self._in_flight = 0
            self._waiting.extendleft(reversed(again))
            if not self._waiting:
                self._none.set()
            if again:
                await anyio.sleep(self._pause_s or self._backoff.next_pause_s())
            else:
                self._backoff.reset()
                self._outage.over()

    async def _deliver(self, batch: list[_Waiting[ReportT]]) -> list[_Waiting[ReportT]]:
        """One exchange for the batch, or several where it is refused as a whole. Returns what is to be sent again."""
        try:
            outcomes = await self._send([item.report for item in batch])
        except (Unavailable, Unauthenticated) as error:  # a token may be renewed; nothing was changed
            self._pause_s = self._outage.note(error)
            return batch
        except ClientError as error:
            if len(batch) == 1:
                return self._refused(batch[0], error)
            middle = len(batch) // 2
            return await self._deliver(batch[:middle]) + await self._deliver(batch[middle:])
        again: list[_Waiting[ReportT]] = []
        for item, outcome in zip(batch, outcome_of_each([item.report.job_id for item in batch], outcomes), strict=True):
            if outcome is None or outcome.outcome == "unavailable":
                again.append(item)
            else:
                self._on_settled(item.held, item.report, outcome)
        return again

    def _refused(self, item: _Waiting[ReportT], error: ClientError) -> list[_Waiting[ReportT]]:
        """Return a report that the engine refuses by itself: offered again a few times if the fault may be the
        engine's."""
        if isinstance(error, InternalError):
            item.internal_errors += 1
            if item.internal_errors < MAX_INTERNAL_ERRORS_PER_ITEM:
                return [item]
        self._on_settled(
            item.held, item.report, JobOutcome(job_id=item.report.job_id, outcome="invalid", reason=str(error))
        )
        return []
