"""The program's side of durable workflows: `App`. Serves workflows, starts runs, and finds them again.

An `App` starts nothing before its first use. It is used in one process: after a fork it refuses.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, TypeVarTuple, Unpack, cast, overload

import msgspec
import trio

from penstock.client.errors import ClientError
from penstock.client.token import Token
from penstock.durable.activation import MAX_LOST
from penstock.durable.app_thread import AppThread, Portal, event_set, in_its_loop, only_error, until_ended
from penstock.durable.backend import CallerRuns, LeasedRun, Opened
from penstock.durable.duration import Duration
from penstock.durable.executor import Executor
from penstock.durable.given import (
    check_at,
    check_callable,
    check_flag,
    check_id,
    check_int,
    check_kind,
    check_name,
    seconds_given,
    wrong,
)
from penstock.durable.in_code import check_queues
from penstock.durable.loaded_run import ExecutorLimits
from penstock.durable.run import Run
from penstock.durable.run_ends import RunEnds
from penstock.durable.signals import Signals
from penstock.durable.starts import StartOptions, start_request
from penstock.durable.step_loop import (
    BACKENDS,
    AsyncioLoop,
    Backend,
    Serve,
    StepLoop,
    TrioLoop,
    loop_in_thread,
    run_beside,
)
from penstock.durable.workflow import Workflow, check_workflow, workflow_in
from penstock.log.plain_log import escape_last_resort
from penstock.user_text import repr_of

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.durable.blocking import BlockingApp
    from penstock.wire.start import Debounce, Dedupe, Throttle

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

STOP_GRACE_S = 10.0
"""How long steps may take to end when `main` is told to stop; then they are cancelled, and begun again elsewhere."""
DRAIN_MAX_S = 60.0
FIND_MAX = 1_000
STATUSES = ("ACTIVE", "WAITING", "COMPLETED", "FAILED", "CANCELLED")
PORT_MAX = 65_535
FAILURE_MAX_CHARS = 600
"""Of the line that says why an app can't start."""


class App:
    """Workflows, and where their runs are. Nothing begins before its first use.

    Tables are made and changed in the embedded PostgreSQL; elsewhere by `penstock migrate`, or with ``migrate``.

    Args:
        workflows: those that it serves. Without any it is a client: it starts, finds and talks to runs, and executes
            none.
        name: keeps the workflows of two services on one database apart; a client of one has the same.
        at: a PostgreSQL (``postgresql://…``), or an engine (``grpc://host:port``, with TLS ``grpcs://…``). By default
            ``PENSTOCK_AT``, else the embedded PostgreSQL. Nothing else differs.
        token: for an engine, as a `Client`'s. By default ``PENSTOCK_TOKEN``.
        ssl_context: for an engine, as a `Client`'s.
        migrate: make or change the tables of a database of yours; False by default.
        rest_port: the port of REST and the console while the App serves, on the loopback address (or where ``WE_BIND``
            says, with the access rules of `penstock serve`). 0 takes a free one, and `rest_url` says where. By default
            none is opened.
        strict_args: block a run whose step is asked for with other arguments than the journal has. By default that is a
            warning in the log.
        max_lost: how often a step is executed again because the lease of its run ended while it ran, as when it ended
            its process; 3 by default. Then it fails with `StepLost`.
        limits: how much it does at a time, and how large a journal may be (`ExecutorLimits`).
        backend: the loop in which async steps run, ``"asyncio"`` or ``"trio"``. By default an App that is entered from
            a Trio program runs them as tasks of that program, and every other App runs them in asyncio.
    """

    def __init__(
        self,
        *workflows: Workflow[..., Any],
        name: str = "",
        at: str | None = None,
        token: Token | None = None,
        ssl_context: ssl.SSLContext | None = None,
        migrate: bool = False,
        rest_port: int | None = None,
        strict_args: bool = False,
        max_lost: int = MAX_LOST,
        limits: ExecutorLimits | None = None,
        backend: Backend | None = None,
    ) -> None:
        check_name("name", name, empty=True)
        check_at(at)
        check_flag("migrate", migrate)
        check_flag("strict_args", strict_args)
        check_int("rest_port", rest_port, 0, PORT_MAX)
        check_int("max_lost", max_lost, 0)
        check_kind("limits", limits, ExecutorLimits, "an ExecutorLimits")
        if limits is not None:
            limits.check()
        check_kind("ssl_context", ssl_context, ssl.SSLContext, "an ssl.SSLContext, as ssl.create_default_context()")
        if not isinstance(token, str):
            check_callable("token", token, "text, or a function that gives it")
        if backend not in (None, *BACKENDS):
            raise ValueError(f"backend is 'asyncio' or 'trio', not {repr_of(backend)}")
        self.name, self.at = name, at
        self._backend: Backend | None = backend
        self.rest_url: str | None = None
        """Of the REST interface and the console, while the app is open with a ``rest_port``."""
        self._token, self._ssl_context = token, ssl_context
        self._migrate, self._rest_port = migrate, rest_port
        self._strict_args, self._max_lost, self._limits = strict_args, max_lost, limits
        for each in workflows:
            check_workflow(each)
        self._workflows = {(each.name, each.version): each for each in workflows}
        for each in workflows:
            other = self._workflows[each.name, each.version]
            if other is not each or sum(one is each for one in workflows) > 1:
                twice = "is given twice" if other is each else f"is {each.where} and {other.where}"
                raise ValueError(
                    f"workflow {each.name!r}, version {each.version}, {twice}: each name and version is one function. "
                    'Give one of them another name, @workflow(name="…"), or version'
                )
        check_queues(workflows)
        self._has_opened = False  # so that it was no start that failed
        self._pid: int | None = None
        self._runs: CallerRuns | None = None
        self._run_ends = RunEnds()
        self._stack: AsyncExitStack | None = None
        self.portal: Portal | None = None
        """Into the app's loop, while it is entered."""
        self.on_event: Callable[[str, LeasedRun, str], None] = lambda event, leased, detail: None

    # -- in a program without a loop

    @overload
    def run(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def run(
        self,
        workflow: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        id: str | None = None,
        deadline: Duration | None = None,
    ) -> R: ...
    def run(  # type: ignore[misc]  # a parameter with the name of an option: the option gets what is given
        self,
        workflow: Any,
        /,
        *args: Any,
        id: str | None = None,
        deadline: Duration | None = None,
        **kwargs: Any,
    ) -> Any:
        """Start a run, or go on with the one that has this id. Serve until it has ended, and return its result.

        Meanwhile other runs of this app's workflows are served, too; what is open at the end is given back. Tells on
        standard error what it waits for. Ctrl-C stops in order: the run goes on when it is run again with its id.

        Args:
            workflow: which one; this App serves it, or has no workflows.
            args: the arguments of its function, as ``kwargs``. Beside options, give those by keyword in a
                `functools.partial` around the workflow.
            id: the run is started once under this id, and gone on with by later calls. Without it each call starts one.
            deadline: so long after its start the run is cancelled: it cleans up and fails. Seconds, a `timedelta` or
                a text such as ``"3 days"``; none by default.

        Raises:
            RunFailed: it failed. RunCancelled: somebody cancelled it. RunBlocked: this code can't go on with it.
            IdempotencyConflict: the run with this id has other arguments.
            ValueError: the App serves other workflows only.
        """
        self._refuse_loops("run")
        workflow, args, kwargs = workflow_in(workflow, args, kwargs)
        check_id(id)
        if deadline is not None:
            seconds_given("deadline", deadline)
        if self._workflows and (workflow.name, workflow.version) not in self._workflows:
            raise ValueError(
                f"run: this App serves {', '.join(self.workflow_names)}, not {workflow.name}@{workflow.version}: it"
                f" would wait for ever. Write App({workflow.name}, …), or start it from an App without workflows, which"
                " waits for one that serves it"
            )
        from penstock.durable.console import serve_one

        signals = Signals()
        asked = partial(self.start, partial(workflow, *args, **kwargs), id=id, deadline=deadline)
        serve = partial(serve_one, self, signals, workflow, asked, id)
        return self._run_in_terminal(signals, serve)

    def main(self) -> None:
        """Serve the workflows until SIGTERM or Ctrl-C. Steps may then take 10 s to end. A second signal ends at once.

        Raises:
            SystemExit: the App can't start; one line on standard error says why.
        """
        self._refuse_loops("main")
        from penstock.durable.console import serve

        signals = Signals()
        self._run_in_terminal(signals, partial(serve, self, signals))

    def _run_in_terminal(self, signals: Signals, serve: Serve) -> Any:
        """What keeps the app from starting is told in one line, with exit code 1."""
        self._has_opened = False
        try:
            with signals.received():
                return run_beside(self._backend or "asyncio", serve)
        except BaseException as error:
            line = None if self._has_opened else start_failure(error)
            if line is None and isinstance(error, BaseExceptionGroup):
                raise only_error(cast("BaseExceptionGroup[BaseException]", error)) from None
            if line is None or hasattr(sys, "ps1"):  # at a prompt of Python no call ends the program
                raise
            raise SystemExit(f"penstock: the App can't start: {line}") from None

    def step_loop(self) -> AbstractContextManager[StepLoop | None]:
        """Return a loop for async steps in a thread of its own; a client has none."""
        return loop_in_thread(self._backend or "asyncio") if self._workflows else nullcontext()

    @contextmanager
    def in_thread(self) -> Generator[BlockingApp]:
        """Serve in a thread of its own, for programs without a loop: ``with app.in_thread() as shop``.

        Async steps run in another thread.

        Yields:
            The App with calls that block, which threads may share.
        """
        from penstock.durable.blocking import serve_in_thread

        self.claim()
        with serve_in_thread(self) as blocking:
            yield blocking

    # -- in a program of Trio or asyncio

    async def __aenter__(self) -> App:
        self.claim()
        enter = self._enter_trio if trio.lowlevel.in_trio_run() else self._enter_asyncio
        try:
            async with AsyncExitStack() as stack:
                await enter(stack)
                self._stack = stack.pop_all()
        except BaseExceptionGroup as group:
            raise only_error(group) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        stack, self._stack = self._stack, None
        assert stack is not None
        try:
            return await stack.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:  # of the nursery inside, which is none of the caller's business
            only = only_error(group)
            if only is error:
                return False
            raise only from None

    async def _enter_trio(self, stack: AsyncExitStack) -> None:
        """In a thread; async steps are tasks of the caller's. What ends the app early cancels the block."""
        token, ended = trio.lowlevel.current_trio_token(), trio.Event()
        nursery = await stack.enter_async_context(trio.open_nursery())
        loop = stack.enter_context(self.step_loop()) if self._backend == "asyncio" else TrioLoop(nursery)

        def end(failed: BaseException | None) -> None:
            ended.set()
            if failed is not None:
                nursery.cancel_scope.cancel()

        def on_end(failed: BaseException | None) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(end, failed)

        at_work, opened = AppThread(lambda: self.opened(loop=loop), on_end), trio.Event()
        at_work.opened.add_done_callback(lambda _: token.run_sync_soon(opened.set))

        async def close() -> None:
            at_work.leave()
            with trio.CancelScope(shield=True):  # the app's own grace bounds it
                await ended.wait()
            nursery.cancel_scope.cancel()
            self.portal = None
            if at_work.failed is not None:
                raise at_work.failed

        stack.push_async_callback(close)
        await event_set(opened, at_work.leave)
        self.portal = Portal(at_work.opened.result(), self.claim)

    async def _enter_asyncio(self, stack: AsyncExitStack) -> None:
        """In a thread; async steps run in this loop. What ends the app early cancels the block, as in Trio."""
        running, task = asyncio.get_running_loop(), asyncio.current_task()
        ended: asyncio.Future[None] = running.create_future()
        loop = stack.enter_context(self.step_loop()) if self._backend == "trio" else AsyncioLoop()

        def on_end(failed: BaseException | None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                if failed is not None and task is not None:
                    running.call_soon_threadsafe(task.cancel)
                running.call_soon_threadsafe(ended.set_result, None)

        at_work = AppThread(lambda: self.opened(loop=loop), on_end)

        async def close() -> None:
            at_work.leave()
            try:
                await until_ended(ended, lambda: None)
            finally:
                self.portal = None
                if at_work.failed is not None:
                    raise at_work.failed

        stack.push_async_callback(close)
        self.portal = Portal(await until_ended(asyncio.wrap_future(at_work.opened), at_work.leave), self.claim)

    @overload
    async def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Run[R]: ...
    @overload
    async def start(
        self, workflow: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> Run[R]: ...
    @in_its_loop  # type: ignore[misc]  # a parameter with the name of an option: the option gets what is given
    async def start(
        self,
        workflow: Any,
        /,
        *args: Any,
        id: str | None = None,
        deadline: Duration | None = None,
        delay: Duration | None = None,
        start_at: datetime | str | None = None,
        dedupe: Dedupe | None = None,
        throttle: Throttle | None = None,
        debounce: Debounce | None = None,
        priority: int | None = None,
        flow_key: str | None = None,
        **kwargs: Any,
    ) -> Run[Any]:
        """Start a run, and return it without waiting for its end.

        Lengths of time are seconds, a `timedelta`, or a text such as ``"10 minutes"``.

        Args:
            workflow: which one. Another program may serve it.
            args: the arguments of its function, as ``kwargs``. Beside options, give those by keyword in a
                `functools.partial` around the workflow.
            id: the run is started once under this id: a second call returns the same run. None by default: each call
                starts a run of its own.
            deadline: so long after its start the run is cancelled: it cleans up and fails. None by default.
            delay: the run is there at once and begins so much later, unless it is cancelled before.
            start_at: the same, with the time at which it begins; a time without a zone is the caller's own.
            dedupe: for a while after a start, others with its key return that run (`penstock.client.Dedupe`).
            throttle: so many may begin in a while; one more raises Throttled, or waits (`penstock.client.Throttle`).
            debounce: of several with its key that come shortly after each other one begins
                (`penstock.client.Debounce`).
            priority: its place in its queue, 0 to 9, lower first; 5 by default.
            flow_key: whose turn it is in its queue, such as a tenant's (docs/queues.md).

        Returns:
            The run. `Run.deduplicated` tells whether it was there before.

        Raises:
            IdempotencyConflict: the run with this id has other arguments.
            Throttled: too many have begun.
            TypeError: it is no workflow, or its function does not take these arguments.
        """
        workflow, args, kwargs = workflow_in(workflow, args, kwargs)
        check_id(id)
        runs = self._open_runs()
        asked = start_request(delay, start_at, dedupe, throttle, debounce, priority, flow_key)
        arguments = workflow.encode_arguments(args, kwargs, deadline=deadline, max_bytes=runs.payload_max_bytes)
        started = await runs.start(workflow.name, workflow.version, arguments, id, asked)
        instance_id, deduplicated = started
        return Run(
            id or instance_id, instance_id, self._open_runs, self._run_ends, workflow,
            is_new=id is None and not deduplicated, deduplicated=deduplicated, portal=self.portal,
        )  # fmt: skip

    @overload
    async def get(self, id: str) -> Run[Any]: ...
    @overload
    async def get(self, id: str, workflow: Workflow[P, R]) -> Run[R]: ...
    async def get(self, id: str, workflow: Any = None) -> Run[Any]:
        """Return the run that was started with an id, or that has this instance id.

        Args:
            id: the id.
            workflow: its workflow, for the type of the result; any by default.

        Raises:
            NotFound: there is none.
        """
        return await self._get(id, workflow)

    @in_its_loop
    async def _get(self, id: str, workflow: Workflow[..., Any] | None) -> Run[Any]:
        if workflow is not None:
            check_workflow(workflow)
        check_id(id, needed=True)
        names = {name: None for name, _ in self._workflows} if workflow is None else {workflow.name: None}
        found = await self._open_runs().find(id, names)
        return Run(id, found, self._open_runs, self._run_ends, workflow, portal=self.portal)

    @in_its_loop
    async def find(
        self, workflow: Workflow[P, R], *, status: str | None = None, blocked: bool = False, limit: int = 100
    ) -> list[Run[R]]:
        """List the latest runs of a workflow, newest first.

        Args:
            workflow: the workflow.
            status: only runs in this status: ACTIVE, WAITING, COMPLETED, FAILED or CANCELLED.
            blocked: only runs that are blocked on code; they are WAITING.
            limit: how many at most, 1 to 1,000; 100 by default.
        """
        check_int("limit", limit, 1, FIND_MAX)
        if status not in (None, *STATUSES):
            raise ValueError(wrong("status", status, f"{', '.join(STATUSES[:-1])} or {STATUSES[-1]}"))
        check_flag("blocked", blocked)
        check_workflow(workflow)
        found = await self._open_runs().latest(workflow.name, status, limit, blocked=blocked)
        return [
            Run(each.business_key or each.id, each.id, self._open_runs, self._run_ends, workflow, portal=self.portal)
            for each in found
        ]

    # -- inside

    @asynccontextmanager
    async def opened(self, grace_s: float = STOP_GRACE_S, loop: StepLoop | None = None) -> AsyncGenerator[None]:
        """Run the app for the block; steps may take ``grace_s`` to end after it. Async ones run in ``loop``."""
        self.claim()
        if self._runs is not None:
            raise RuntimeError("this app is in use already")
        escape_last_resort()
        async with self._open_backend() as (runs, backend, url), trio.open_nursery() as nursery:
            self._runs, self.rest_url, self._has_opened = runs, url, True
            nursery.start_soon(self._run_ends.watch, runs.find_ended)
            try:
                if backend is None:
                    yield
                    return
                limits = msgspec.structs.replace(
                    self._limits or ExecutorLimits(),
                    payload_max_bytes=runs.payload_max_bytes,
                    strict_args=self._strict_args,
                    max_lost=self._max_lost,
                )
                executor = Executor(backend, self._workflows, limits, self._on_event, self._on_result, loop)
                await nursery.start(executor.run)
                try:
                    yield
                finally:
                    with trio.CancelScope(shield=True), trio.move_on_after(grace_s + DRAIN_MAX_S):
                        await executor.drain(grace_s)
            finally:
                self._runs = self.rest_url = None
                nursery.cancel_scope.cancel()

    def _open_backend(self) -> AbstractAsyncContextManager[Opened]:
        at = find_at(self.at)
        if at is not None and at.startswith(("grpc://", "grpcs://")):
            if self._migrate or self._rest_port is not None:
                raise ValueError("migrate and rest_port are for an engine inside; this app uses that at grpc://…")
            from penstock.durable.remote import open_remote

            token = self._token or os.environ.get("PENSTOCK_TOKEN")
            return open_remote(at, self.name, self.workflows, token=token, ssl_context=self._ssl_context)
        if self._token is not None or self._ssl_context is not None:
            raise ValueError("token and ssl_context are for an engine at grpc://…")
        from penstock.durable.local import open_local

        return open_local(at, self.name, self.workflows, migrate=self._migrate, rest_port=self._rest_port)

    def _on_event(self, event: str, leased: LeasedRun, detail: str) -> None:
        if event == "blocked":
            self._run_ends.blocked[leased.id] = detail
        if event in ("taken", "resumed"):
            self._run_ends.blocked.pop(leased.id, None)
            self._run_ends.leased.add(leased.id)
        else:
            self._run_ends.leased.discard(leased.id)
        if event in ("blocked", "ended"):
            self._run_ends.notify(leased.id)
        self.on_event(event, leased, detail)

    def _on_result(self, leased: LeasedRun, result: str) -> None:
        self._run_ends.notify(leased.id, result)

    def _open_runs(self) -> CallerRuns:
        self.claim()
        if self._runs is None:
            raise RuntimeError("this app is not open: use `async with app`, or `with app.in_thread()`")
        return self._runs

    def claim(self) -> None:
        """Bind the app to this process; another one may not use it."""
        if self._pid is None:
            self._pid = os.getpid()
        elif self._pid != os.getpid():
            raise RuntimeError(
                f"this App was used in process {self._pid}, of which this one is a fork: make or use it after the fork"
            )

    def _refuse_loops(self, verb: str) -> None:
        if trio.lowlevel.in_trio_run():
            raise RuntimeError(f"{verb}() blocks, and a Trio loop runs here: use `async with app`")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise RuntimeError(f"{verb}() blocks, and an asyncio loop runs here: use `async with app`")

    @property
    def workflows(self) -> list[Workflow[..., Any]]:
        """Return the workflows that it serves."""
        return list(self._workflows.values())

    @property
    def workflow_names(self) -> list[str]:
        """Return their names and versions, as ``order@1``."""
        return [f"{name}@{version}" for name, version in self._workflows]


def find_at(at: str | None) -> str | None:
    """What was named, here or in ``PENSTOCK_AT``; None for the database of the settings. Raises ValueError."""
    at = at or os.environ.get("PENSTOCK_AT") or None
    check_at(at)
    return at


def run_ungrouped(function: Callable[..., Any], *args: Any) -> Any:
    """``trio.run``; an error that came alone comes without its groups."""
    try:
        return trio.run(function, *args, strict_exception_groups=True)
    except BaseExceptionGroup as group:
        raise only_error(group) from None


def start_failure(error: BaseException) -> str | None:
    """The line that says why an app can't start; None for what is no matter of its surroundings."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, ClientError):
        return error.reason
    if not isinstance(error, OSError | ValueError) and type(error).__module__.split(".")[0] not in (
        "penstock",
        "psycopg",
    ):
        return None
    return str(error).strip().split("\n", 1)[0][:FAILURE_MAX_CHARS] or type(error).__name__
