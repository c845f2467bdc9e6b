"""Handlers that run in processes of their own: work for a processor, stopped when it is in vain."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process

from penstock.client import Completion, Failure, JobCancelled, JobRef
from penstock.worker import JobContext, Worker
from penstock.worker.process import LENGTH_BYTES, framed
from penstock.worker.process_pool import _PROGRAM, ProcessPool
from tests.runtime.waiting import wait_until
from tests.sdk import cpu_handlers
from tests.sdk.loops import Run
from tests.sdk.scripted_transport import ScriptedTransport, job
from tests.sdk.test_handlers import report_of, result_of


def in_process(run: Run, function: Callable[..., Any], variables: dict[str, Any] | None = None) -> Any:
    return report_of(run, function, variables, in_process=True)


def test_the_function_gets_its_variables_and_job_in_another_process(run: Run) -> None:
    result: Any = result_of(in_process(run, cpu_handlers.add_up, {"upto": 1000}))
    assert (result["sum"], result["job"]) == (499500, "1")
    assert result["pid"] != os.getpid()


@pytest.mark.parametrize(
    ("function", "retryable", "message"),
    [
        (cpu_handlers.refuses, False, "not this one"),
        (cpu_handlers.ends_its_process, True, "HandlerEnded: SystemExit: 3"),
        (cpu_handlers.dies, True, "BrokenWorkerProcess: "),
        (cpu_handlers.returns_a_lock, True, "TypeError: TypeError: cannot pickle '_thread.lock' object"),
    ],
)
def test_its_errors_are_failures_and_the_worker_lives(
    run: Run, function: Callable[..., Any], retryable: bool, message: str
) -> None:
    report = in_process(run, function)
    assert isinstance(report, Failure)
    assert (report.retryable, report.error_message) == (retryable, message)


def test_signals_to_the_process_group_are_left_to_the_worker(run: Run) -> None:
    report = in_process(run, cpu_handlers.gets_the_groups_signals)
    assert isinstance(report, Completion)
    assert result_of(report) == {"survived": True}


def test_a_cancelled_job_ends_its_process(run: Run) -> None:
    def extend(ref: JobRef) -> None:
        if ref.job_id == "1":
            raise JobCancelled("the instance was cancelled")

    async def main() -> None:
        transport = ScriptedTransport()
        transport.on_extend = extend
        worker = Worker(transport, lease_s=1, max_processes=1)
        worker.handler("t", in_process=True)(cpu_handlers.never_ends)
        worker.handler("sum", in_process=True)(cpu_handlers.add_up)
        async with worker:
            transport.hand_out(job("1"))
            await transport.wait_until(lambda: transport.beats["1"])
            transport.hand_out(job("2", "sum", variables={"upto": 3}))
            await transport.wait_until(lambda: transport.completed)
        assert [report.job_id for report in transport.completed] == ["2"]
        assert transport.failed == []

    run(main)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_c_does_not_end_a_process_that_still_starts() -> None:
    ignored = 1 << signal.SIGINT - 1 | 1 << signal.SIGTERM - 1

    def ignores() -> bool:
        status = Path(f"/proc/{process.pid}/status").read_text()
        return int(status.partition("SigIgn:")[2].split()[0], 16) & ignored == ignored

    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            wait_until(ignores)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            answer, _ = process.communicate(pickle.dumps((sys.path, None)) + framed((abs, (-1,))))
        finally:
            process.kill()
    assert pickle.loads(answer[LENGTH_BYTES:]) == (True, 1)


class Opened:
    """The processes that were begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: list[Process] = []
        self.one = anyio.Event()
        self._open_process = anyio.open_process
        monkeypatch.setattr(anyio, "open_process", self._open)

    async def _open(self, *arguments: Any, **options: Any) -> Process:
        process = await self._open_process(*arguments, **options)
        self.processes.append(process)
        self.one.set()
        return process

    def all_reaped(self) -> bool:
        return all(process.returncode is not None for process in self.processes)


def test_a_call_cancelled_while_its_process_starts_leaves_none_behind(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        opened = Opened(monkeypatch)
        pool = ProcessPool(1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.run, cpu_handlers.never_ends, ())
            await opened.one.wait()
            tasks.cancel_scope.cancel()
        assert (len(opened.processes), opened.all_reaped()) == (1, True)
        assert await pool.run(abs, (-1,)) == 1  # its place is free
        await pool.aclose()

    run(main)


def test_idle_processes_are_reused_replaced_and_ended_with_the_worker(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        opened = Opened(monkeypatch)
        transport = ScriptedTransport()
        worker = Worker(transport, max_processes=1)
        worker.handler("t", in_process=True)(cpu_handlers.add_up)
        async with worker:
            for count in (1, 2, 3):
                if count == 3:
                    opened.processes[0].kill()
                    await opened.processes[0].wait()
                transport.hand_out(job(str(count), variables={"upto": 3}))
                await transport.wait_until(lambda count=count: len(transport.completed) == count)
        first, second, third = (result_of(report)["pid"] for report in transport.completed)  # type: ignore[index]  # pyright: ignore[reportIndexIssue] - JSON of its own making
        assert [process.pid for process in opened.processes] == [first, third]
        assert first == second
        assert opened.all_reaped()

    run(main)


def takes_context(context: JobContext) -> None: ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (cpu_handlers.is_async, "is async"),
        (takes_context, "takes a JobContext"),
        (lambda: None, "local function"),
    ],
)
def test_what_cannot_cross_processes_is_refused_at_registration(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        Worker("http://127.0.0.1:1").handler("t", in_process=True)(function)
