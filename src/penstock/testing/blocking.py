"""`TestEngine` without await, for plain test functions.

One event loop runs in a thread of its own (anyio's blocking portal); stubs and handlers run in it, and so does what
the asynchronous forms do. Must not decide anything of its own.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Coroutine, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from penstock.client import SyncClient
from penstock.client.blocking import run_blocking
from penstock.testing.in_process import in_process_transport
from penstock.testing.rehearsal import TestEngine
from penstock.testing.run import FINISH_WITHIN, Run
from penstock.testing.run_view import InspectedRun
from penstock.testing.stubs import Duration, Stub
from penstock.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[TestEngine, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncTestEngine, P], R]:
    """The method of ``SyncTestEngine`` that runs a method of ``TestEngine`` to its end."""

    @functools.wraps(method)
    def run(self: SyncTestEngine, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.await_(lambda: method(self.engine, *args, **kwargs))

    return run


def _of_run(method: Callable[Concatenate[Run, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[SyncRun, P], R]:
    """The method of ``SyncRun`` that runs a method of ``Run`` to its end."""

    @functools.wraps(method)
    def run(self: SyncRun, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.owner.await_(lambda: method(Run(self.owner.engine, self.id), *args, **kwargs))

    return run


class SyncTestEngine:
    """A blocking `TestEngine`. The fixture ``penstock_sync`` gives one to each test.

    Args:
        engine: an open one; both may be used in turn.
        backend: the event loop in which handlers run.

    Use it as ``with SyncTestEngine(engine) as penstock``.
    """

    def __init__(self, engine: TestEngine, *, backend: Literal["asyncio", "trio"] = "asyncio") -> None:
        self.engine = engine
        self._backend = backend
        self._stack = ExitStack()
        self._portal: BlockingPortal
        self._client: SyncClient | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal(self._backend))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def await_(self, function: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run an asynchronous function to its end in the loop where handlers run."""
        return run_blocking(self._portal, function)

    @property
    def client(self) -> SyncClient:
        """Return the engine's client: everything that is not simpler here, and for code that takes one."""
        if self._client is None:
            self._client = self._stack.enter_context(SyncClient(in_process_transport(self.engine.thread)))
        return self._client

    @property
    def now(self) -> dt.datetime:
        """Return the virtual time, in UTC."""
        return self.engine.now

    @property
    def stubs(self) -> dict[str, Stub]:
        """What answers the jobs of each type."""
        return self.engine.stubs

    def stub(self, job_type: str, *answers: object, takes: Duration = 0.0, **one: Any) -> Stub:
        """See `TestEngine.stub`."""
        return self.engine.stub(job_type, *answers, takes=takes, **one)

    def use(self, *workers: Worker) -> None:
        """See `TestEngine.use`."""
        self.engine.use(*workers)

    def start(self, definition_id: str, variables: object = None, **more: Any) -> SyncRun:
        """See `TestEngine.start`."""
        return SyncRun(self, self.await_(lambda: self.engine.start(definition_id, variables, **more)).id)

    def run(self, instance_id: str) -> SyncRun:
        """Return the run of an instance that was started in another way."""
        return SyncRun(self, instance_id)

    @contextmanager
    def serve(self) -> Generator[str]:
        """See `TestEngine.serve`."""
        with self._portal.wrap_async_context_manager(self.engine.serve()) as url:
            yield url

    deploy = _blocking(TestEngine.deploy)
    stub_workflow = _blocking(TestEngine.stub_workflow)
    publish = _blocking(TestEngine.publish)
    settle = _blocking(TestEngine.settle)
    advance = _blocking(TestEngine.advance)


class SyncRun(InspectedRun):
    """`Run` without await. Made by `SyncTestEngine.start`."""

    def __init__(self, owner: SyncTestEngine, instance_id: str) -> None:
        super().__init__(owner.engine, instance_id)
        self.owner = owner

    def settle(self) -> Self:
        """See `TestEngine.settle`."""
        self.owner.settle()
        return self

    def finish(self, *, within: Duration = FINISH_WITHIN) -> Self:
        """See `Run.finish`."""
        self.owner.await_(lambda: Run(self.owner.engine, self.id).finish(within=within))
        return self

    def _of(self, instance_id: str) -> Self:
        return type(self)(self.owner, instance_id)

    complete_task = _of_run(Run.complete_task)
    complete_job = _of_run(Run.complete_job)
    fail_job = _of_run(Run.fail_job)
    signal = _of_run(Run.signal)
    cancel = _of_run(Run.cancel)
    retry = _of_run(Run.retry)
