"""What a worker tells about itself while it works, for metrics and the like. Called in the event loop: be quick."""

from __future__ import annotations


class WorkerObserver:
    """Does nothing; override what is of interest."""

    def on_handler_started(self, job_type: str) -> None:
        """Observe that a handler begins; ``on_handler_ended`` follows in any case."""

    def on_handler_ended(self, job_type: str, end: str, seconds: float) -> None:
        """Observe that a handler has ended after so many seconds, waiting for a slot not included.

        ``end`` is ``completed``, ``failed``, ``to-retry`` (a failure that may be retried), ``parked``, or why it was
        stopped: ``lease-lost``, ``cancelled``, ``deadline``, ``stopping``.
        """

    def on_result_settled(self, job_type: str, report: str, outcome: str) -> None:
        """Observe that the engine has answered a ``completion``, ``failure`` or ``park`` with an outcome, as in
        ``JobOutcome``."""

    def on_lag(self, job_type: str, records: int, seconds: float) -> None:
        """Observe, every few seconds, how far a worker that takes its jobs from Kafka is behind.

        ``records`` of its partitions are not settled yet; the oldest that it has read is ``seconds`` old.
        """

    def on_engine(self, reachable: bool) -> None:
        """Observe that the engine stopped or began to give jobs to this worker."""
