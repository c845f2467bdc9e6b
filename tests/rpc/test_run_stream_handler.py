"""The desk of an executor's stream alone: what counts as pending, and of which runs it tells mail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from penstock.engine.queues.journal_items import RULES, MailboxNotice
from penstock.engine.requests import ids
from penstock.errors import Unavailable
from penstock.rpc.run_stream_handler import RunStreamHandler
from penstock.wire import penstock_v1 as w
from penstock.wire.model import Job

LARGE = "1" * 1_000_000


class HandlerOfRuns:
    """One whose stream has no runs, and whose engine can't read any; `told` is mail for it."""

    def __init__(self) -> None:
        self._changed, self._reported = trio.open_memory_channel[list[MailboxNotice]](10)
        self.granted: list[str] = []
        journal = SimpleNamespace(
            open_mailbox=lambda holder: None, close_mailbox=lambda holder: None, wait_mailbox=self._wait_mailbox
        )
        engine = SimpleNamespace(journal=journal, code=SimpleNamespace(claimed=self._claimed))
        jobs = SimpleNamespace(
            worker="e1.00/w-1",
            holds=lambda job_id, attempt: False,
            on_reported=lambda job_id, attempt: None,
            grant=lambda job_type, count: self.granted.append(job_type),
        )
        self.is_away = False
        self.handler = RunStreamHandler(cast(Any, engine), cast(Any, jobs), lambda: None, RULES)

    async def _wait_mailbox(self, holder: str) -> list[MailboxNotice]:
        return await self._reported.receive()

    async def _claimed(self, jobs: list[Job]) -> Any:
        if self.is_away:
            raise Unavailable("the database is away")
        await trio.sleep_forever()

    async def mail(self, instance: int) -> list[w.RunMail]:
        """What the executor is told when somebody writes to that run."""
        await self._changed.send([MailboxNotice("e1.00/w-1", instance, 1)])
        await trio.testing.wait_all_tasks_blocked()
        message = w.WorkResponse()
        self.handler.compose(message)
        return message.mail


@pytest.fixture
async def handler(nursery: trio.Nursery) -> HandlerOfRuns:
    made = HandlerOfRuns()
    await nursery.start(made.handler.run, nursery)
    return made


async def test_all_of_an_item_counts_as_pending(handler: HandlerOfRuns) -> None:
    requests = [
        w.WorkRequest(appends=[w.RunAppend("j", 1, records=[w.RunRecord(path=LARGE)])]),
        w.WorkRequest(appends=[w.RunAppend("j", 1, records=[w.RunRecord(kind=5)] * 10_000)]),
        w.WorkRequest(run_parks=[w.RunPark("j", 1, blocked_on=LARGE)]),
        w.WorkRequest(finishes=[w.RunFinish("j", 1, begun=w.RunRecord(payload=LARGE))]),
        w.WorkRequest(finishes=[w.RunFinish("j", 1, kept=["1"] * 1_000_000)]),
        w.WorkRequest(children=[w.RunChild("j", 1, key=LARGE)]),
    ]
    for count, request in enumerate(requests, 1):
        handler.handler.take(request)
        assert handler.handler.pending_bytes >= count * 1_000_000
    await trio.testing.wait_all_tasks_blocked()
    handler.handler.compose(w.WorkResponse())
    assert handler.handler.pending_bytes == 0


async def test_mail_is_told_of_runs_that_the_executor_has(handler: HandlerOfRuns) -> None:
    job = Job(id=ids.show_job(7, 7, 9), job_type="code:order@1", attempt=1)
    handler.handler.describe([job])
    assert await handler.mail(7) == [w.RunMail(job.id, 1)]
    handler.handler.forget([job.id])  # the lease was lost
    assert await handler.mail(7) == []
    handler.is_away = True
    handler.handler.describe([job])
    await trio.testing.wait_all_tasks_blocked()
    assert await handler.mail(7) == []
    assert handler.granted == ["code:order@1"]
