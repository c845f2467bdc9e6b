"""Log records of a handler carry its job's ids, those of the libraries it uses as well."""

from __future__ import annotations

import logging

import anyio
import anyio.to_thread
import pytest

from penstock.worker import JobContext, JobLogFilter, Worker, current_job
from tests.sdk.loops import Run
from tests.sdk.scripted_transport import ScriptedTransport, job


def test_records_carry_the_ids_of_the_job_they_belong_to(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    library = logging.getLogger("some.library")

    def in_a_thread() -> None:
        context = current_job()
        assert context is not None
        library.info("thread of %s", context.id)

    async def handle(context: JobContext) -> None:
        context.log.info("own of %s", context.id, extra={"amount": 5})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, in_a_thread)

    async def main() -> None:
        transport = ScriptedTransport()
        worker = Worker(transport)
        worker.handler("t")(handle)
        async with worker:
            transport.hand_out(job("a"), job("b", attempt=4))
            await transport.wait_until(lambda: len(transport.completed) == 2)
        assert current_job() is None
        library.info("outside")

    caplog.set_level(logging.INFO)
    job_filter = JobLogFilter()
    caplog.handler.addFilter(job_filter)
    try:
        run(main)
    finally:
        caplog.handler.removeFilter(job_filter)
    fields = {
        record.getMessage(): (record.__dict__["job_id"], record.__dict__["instance_id"], record.__dict__["attempt"])
        for record in caplog.records
    }
    assert fields["own of a (job a, attempt 1)"] == fields["thread of a"] == ("a", "ia", 1)
    assert fields["own of b (job b, attempt 4)"] == fields["thread of b"] == ("b", "ib", 4)
    assert fields["outside"] == (None, None, None)
    assert [record.__dict__["amount"] for record in caplog.records if "amount" in record.__dict__] == [5, 5]
