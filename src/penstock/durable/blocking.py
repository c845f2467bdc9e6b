"""An `App` in a thread of its own for programs without a loop: its calls block the thread that makes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, TypeVarTuple, Unpack, overload

import trio
import trio.from_thread
import trio.lowlevel

from penstock.durable.app_thread import NOT_SERVING, AppThread
from penstock.durable.run import Run
from penstock.durable.starts import StartOptions
from penstock.durable.workflow import Workflow

if TYPE_CHECKING:
    from penstock.durable.app import App

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class BlockingRun(Generic[R]):
    """A `Run` whose calls block."""

    def __init__(self, run: Run[R], call: Callable[[Callable[[], Awaitable[Any]]], Any]) -> None:
        self.id, self.instance_id, self.deduplicated = run.id, run.instance_id, run.deduplicated
        self._run, self._call = run, call

    def __repr__(self) -> str:
        return repr(self._run)

    def result(self, timeout_s: float | None = None) -> R:
        """See `Run.result`."""
        value: R = self._call(lambda: self._run.result(timeout_s))
        return value

    def status(self) -> str:
        """See `Run.status`."""
        return str(self._call(self._run.status))

    def send(self, name: str, value: object = None, *, dedup: str | None = None, force: bool = False) -> None:
        """See `Run.send`."""
        self._call(lambda: self._run.send(name, value, dedup=dedup, force=force))

    def ask(
        self, update: str, /, *args: object, id: str | None = None, timeout_s: float | None = None, **kwargs: object
    ) -> Any:
        """See `Run.ask`."""
        return self._call(lambda: self._run.ask(update, *args, id=id, timeout_s=timeout_s, **kwargs))

    def cancel(self, reason: str | None = None, *, force: bool = False) -> None:
        """See `Run.cancel`."""
        self._call(lambda: self._run.cancel(reason, force=force))

    def fork(self, path: str, *, id: str | None = None, later_messages: bool = False) -> BlockingRun[R]:
        """See `Run.fork`."""
        return BlockingRun(self._call(lambda: self._run.fork(path, id=id, later_messages=later_messages)), self._call)

    def retry(self, from_: str | None = None, *, note: str | None = None) -> None:
        """See `Run.retry`."""
        self._call(lambda: self._run.retry(from_, note=note))

    def view(self, key: str | float | None = None, timeout_s: float = 0.0) -> Any:
        """See `Run.view`."""
        return self._call(lambda: self._run.view(key, timeout_s))

    def history(self) -> Generator[dict[str, Any]]:
        """See `Run.history`."""
        cursor: str | None = None
        while True:
            records, cursor = self._call(partial(self._run.read_history, cursor))
            yield from records
            if cursor is None:
                return

    def tree(self) -> dict[str, Any]:
        """See `Run.tree`."""
        tree: dict[str, Any] = self._call(self._run.tree)
        return tree


class BlockingApp:
    """An `App` that serves in another thread. Safe to share between threads."""

    def __init__(self, app: App, token: trio.lowlevel.TrioToken) -> None:
        self._app, self._token = app, token

    @overload
    def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> BlockingRun[R]: ...
    @overload
    def start(
        self, workflow: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> BlockingRun[R]: ...
    def start(  # type: ignore[misc]  # as of App.start, which has the signature
        self, workflow: Any, /, *args: Any, **kwargs: Any
    ) -> BlockingRun[Any]:
        """See `App.start`."""
        run: Run[Any] = self._call(partial(self._app.start, workflow, *args, **kwargs))
        return BlockingRun(run, self._call)

    @overload
    def get(self, id: str) -> BlockingRun[Any]: ...
    @overload
    def get(self, id: str, workflow: Workflow[P, R]) -> BlockingRun[R]: ...
    def get(self, id: str, workflow: Any = None) -> BlockingRun[Any]:
        """See `App.get`."""
        run: Run[Any] = self._call(lambda: self._app.get(id) if workflow is None else self._app.get(id, workflow))
        return BlockingRun(run, self._call)

    def find(self, workflow: Workflow[P, R], *, status: str | None = None, limit: int = 100) -> list[BlockingRun[R]]:
        """See `App.find`."""
        found = self._call(lambda: self._app.find(workflow, status=status, limit=limit))
        return [BlockingRun(run, self._call) for run in found]

    def _call(self, function: Callable[[], Awaitable[T]]) -> T:
        self._app.claim()  # in a fork there is no such thread, and nobody would answer
        try:
            return trio.from_thread.run(function, trio_token=self._token)
        except trio.RunFinishedError:
            raise RuntimeError(NOT_SERVING) from None


@contextmanager
def serve_in_thread(app: App) -> Generator[BlockingApp]:
    """Run the app in a thread for the block, and async steps in another one. What ends it early is raised at the
    block's end."""
    with app.step_loop() as loop:
        at_work = AppThread(lambda: app.opened(loop=loop))
        try:
            yield BlockingApp(app, at_work.opened.result())
        finally:
            at_work.leave()
            at_work.thread.join()
    if at_work.failed is not None:
        raise at_work.failed
