"""One workflow instance in a test: what is true of it, and what the test does to it, under asyncio or Trio.

What it does goes through the client, as everybody's calls do.
"""

from __future__ import annotations

import datetime as dt

from penstock.testing.run_view import InspectedRun
from penstock.testing.stubs import Duration

FINISH_WITHIN: dt.timedelta = dt.timedelta(days=3650)
"""So much virtual time may pass until a run has to have ended."""


class Run(InspectedRun):
    """A workflow instance. Made by `TestEngine.start`."""

    async def settle(self) -> Run:
        """See `TestEngine.settle`."""
        await self._engine.settle()
        return self

    async def finish(self, *, within: Duration = FINISH_WITHIN) -> Run:
        """Go on to its end, jumping to each next time at which something is due, over ``within`` at most.

        Raises:
            Stuck: nothing more will happen without an event from outside, or not within this time. Says what it waits
                for.
            NotSettled: as `TestEngine.settle`.
        """
        await self._engine.run_until(lambda: self.ended, self, within)
        return self

    async def complete_task(
        self, step_id: str, variables: object = None, *, by: str | None = None, nth: int | None = None
    ) -> None:
        """Complete the open user task of a step; of several the oldest, or the ``nth``, from 0, in order of entry.

        Raises:
            NotFound: there is no open task at that step.
        """
        execution = None if nth is None else self._open(step_id, nth).id
        await self._engine.client.complete_user_task(
            self.id, step_id, variables, completed_by=by, execution_id=execution
        )

    async def complete_job(self, step_id: str, variables: object = None, *, nth: int = 0) -> None:
        """Complete the job that waits at a step, without a stub; of several the ``nth``, from 0, in order of entry.

        Raises:
            NotFound: no job waits there.
        """
        job = await self._engine.take_job(self._open(step_id, nth).id)
        await self._engine.client.complete_job(job.id, job.worker_id or "", variables, attempt=job.attempt)

    async def fail_job(
        self,
        step_id: str,
        reason: str = "failed",
        *,
        retryable: bool = True,
        code: str | None = None,
        variables: object = None,
        nth: int = 0,
    ) -> None:
        """Fail the job that waits at a step, as `complete_job` completes it. ``variables`` are for the error boundary
        that catches ``code``.

        Raises:
            NotFound: no job waits there.
        """
        job = await self._engine.take_job(self._open(step_id, nth).id)
        await self._engine.client.fail_job(
            job.id,
            job.worker_id or "",
            reason,
            retryable=retryable,
            attempt=job.attempt,
            error_code=code,
            variables=variables,
        )

    async def signal(self, step_id: str, variables: object = None, *, buffer: bool = False) -> None:
        """Signal a waiting step. With ``buffer`` the signal is kept when it comes before its wait.

        Raises:
            Conflict: it does not wait there.
        """
        await self._engine.client.signal(self.id, step_id, variables, buffer=buffer)

    async def cancel(self, reason: str | None = None, *, compensate: bool = False) -> None:
        """Cancel it; with ``compensate`` it compensates its steps first. Raises Conflict if it has ended."""
        await self._engine.client.cancel_instance(self.id, reason=reason, compensate=compensate)

    async def retry(self) -> None:
        """Let a failed one go on where it failed. Raises Conflict when it has not failed."""
        await self._engine.client.retry_instance(self.id)
