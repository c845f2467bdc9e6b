"""The client without await, for scripts and notebooks.

One event loop runs in a thread of its own (anyio's blocking portal), with the asynchronous client in it: the same
retries, time limits and errors. Not for use inside an event loop: it blocks.
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from threading import Thread
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, TypeVarTuple

import anyio
from anyio.from_thread import BlockingPortal

from penstock.client.caller import CALL_TIMEOUT_S, EXCHANGE_TIMEOUT_S
from penstock.client.client import Client
from penstock.client.operation import Transport
from penstock.client.token import Token

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncClient, P], R]:
    """Return the method of ``SyncClient`` that runs a method of ``Client`` to its end."""

    @functools.wraps(method)
    def run(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.run(lambda client: method(client, *args, **kwargs))

    return run


def _iterating(
    method: Callable[Concatenate[Client, P], AsyncIterator[T]],
) -> Callable[Concatenate[SyncClient, P], Iterator[T]]:
    """The method of ``SyncClient`` that reads a list item by item, as a method of ``Client`` does."""

    @functools.wraps(method)
    def read(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        found: list[AsyncIterator[T]] = []

        async def next_one(client: Client) -> T | None:
            if not found:
                found.append(method(client, *args, **kwargs))
            return await anext(found[0], None)

        while (item := self.run(next_one)) is not None:
            yield item

    return read


def run_blocking(
    portal: BlockingPortal, function: Callable[[*Arguments], Coroutine[Any, Any, R]], *arguments: *Arguments
) -> R:
    """Run a function in the portal's loop to its end. Ctrl-C cancels it: else the portal's end would wait for it."""
    future = portal.start_task_soon(function, *arguments)
    try:
        result: R = future.result()
    finally:
        future.cancel()
    return result


class _LoopThread:
    """An event loop in a thread of its own.

    anyio's `start_blocking_portal` is a generator: a forked child collects it at its end and waits for a thread that
    it does not have.
    """

    def __init__(self) -> None:
        self._opened = Future[BlockingPortal]()
        self._thread = Thread(target=self._run, daemon=True, name="penstock-client")
        self._thread.start()
        self.portal = self._opened.result()

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    async def _serve(self) -> None:
        async with BlockingPortal() as portal:
            self._opened.set_result(portal)
            await portal.sleep_until_stopped()

    def close(self) -> None:
        self.portal.call(self.portal.stop)
        self._thread.join()


class SyncClient:
    """A blocking client of one engine. Arguments as for ``Client``.

    Use it as ``with SyncClient(url) as client``, or call ``close()`` at the end. Safe to share between threads. In a
    forked child it begins anew, with a thread and connections of its own.
    """

    def __init__(
        self,
        engine: str | Transport,
        *,
        token: Token | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        exchange_timeout_s: float = EXCHANGE_TIMEOUT_S,
    ) -> None:
        self._client = Client(
            engine,
            token=token,
            ssl_context=ssl_context,
            timeout_s=timeout_s,
            exchange_timeout_s=exchange_timeout_s,
        )
        self._closed = False
        # By process: a thread does not live on in a forked child. A lock could be held by another thread at the fork.
        self._loops: dict[int, _LoopThread] = {}
        self._loop()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, call: Callable[[Client], Coroutine[Any, Any, R]]) -> R:
        """Run a function of the asynchronous client to its end, e.g. several calls at once in a task group."""
        return run_blocking(self._loop().portal, call, self._client)

    def close(self) -> None:
        """Close all connections and end the thread. May be called again."""
        self._closed = True
        loop = self._loops.pop(os.getpid(), None)
        if loop is not None:
            try:
                loop.portal.call(self._client.aclose)
            finally:
                loop.close()

    def _loop(self) -> _LoopThread:
        """Return the event loop of this process."""
        loop = self._loops.get(os.getpid())
        if loop is not None:
            return loop
        if self._closed:
            raise RuntimeError("this client is closed")
        made = _LoopThread()
        loop = self._loops.setdefault(os.getpid(), made)
        if loop is not made:  # another thread was faster
            made.close()
        return loop

    # methods: written by `make docs` from those of Client
    is_ready = _blocking(Client.is_ready)
    wait_until_ready = _blocking(Client.wait_until_ready)
    list_declarations = _blocking(Client.list_declarations)
    apply_declaration = _blocking(Client.apply_declaration)
    ask_run = _blocking(Client.ask_run)
    get_run_view = _blocking(Client.get_run_view)
    get_run_update = _blocking(Client.get_run_update)
    list_sql_requests = _blocking(Client.list_sql_requests)
    retry_sql_request = _blocking(Client.retry_sql_request)
    drop_sql_request = _blocking(Client.drop_sql_request)
    put_schedule = _blocking(Client.put_schedule)
    get_schedule = _blocking(Client.get_schedule)
    list_schedules = _blocking(Client.list_schedules)
    iterate_schedules = _iterating(Client.iterate_schedules)
    delete_schedule = _blocking(Client.delete_schedule)
    pause_schedule = _blocking(Client.pause_schedule)
    resume_schedule = _blocking(Client.resume_schedule)
    trigger_schedule = _blocking(Client.trigger_schedule)
    backfill_schedule = _blocking(Client.backfill_schedule)
    preview_schedule = _blocking(Client.preview_schedule)
    put_queue = _blocking(Client.put_queue)
    get_queue = _blocking(Client.get_queue)
    list_queues = _blocking(Client.list_queues)
    pause_queue = _blocking(Client.pause_queue)
    resume_queue = _blocking(Client.resume_queue)
    delete_queue = _blocking(Client.delete_queue)
    poll_jobs = _blocking(Client.poll_jobs)
    list_failed_jobs = _blocking(Client.list_failed_jobs)
    list_open_jobs = _blocking(Client.list_open_jobs)
    list_job_types = _blocking(Client.list_job_types)
    list_audit = _blocking(Client.list_audit)
    list_attention = _blocking(Client.list_attention)
    acknowledge = _blocking(Client.acknowledge)
    withdraw_acknowledgement = _blocking(Client.withdraw_acknowledgement)
    list_workers = _blocking(Client.list_workers)
    iterate_failed_jobs = _iterating(Client.iterate_failed_jobs)
    complete_job = _blocking(Client.complete_job)
    fail_job = _blocking(Client.fail_job)
    forget_checkpoint = _blocking(Client.forget_checkpoint)
    park_job = _blocking(Client.park_job)
    heartbeat_job = _blocking(Client.heartbeat_job)
    heartbeat_jobs = _blocking(Client.heartbeat_jobs)
    complete_jobs = _blocking(Client.complete_jobs)
    fail_jobs = _blocking(Client.fail_jobs)
    release_jobs = _blocking(Client.release_jobs)
    publish_message = _blocking(Client.publish_message)
    list_messages = _blocking(Client.list_messages)
    send_message = _blocking(Client.send_message)
    fork_run = _blocking(Client.fork_run)
    drop_message = _blocking(Client.drop_message)
    correct_message = _blocking(Client.correct_message)
    get_journal = _blocking(Client.get_journal)
    iterate_journal = _iterating(Client.iterate_journal)
    get_tree = _blocking(Client.get_tree)
    preview_bulk = _blocking(Client.preview_bulk)
    start_bulk = _blocking(Client.start_bulk)
    get_bulk = _blocking(Client.get_bulk)
    list_bulk = _blocking(Client.list_bulk)
    iterate_bulk = _iterating(Client.iterate_bulk)
    stop_bulk = _blocking(Client.stop_bulk)
    wait_for_bulk = _blocking(Client.wait_for_bulk)
    start_batch = _blocking(Client.start_batch)
    get_batch = _blocking(Client.get_batch)
    wait_for_batch = _blocking(Client.wait_for_batch)
    list_batches = _blocking(Client.list_batches)
    iterate_batches = _iterating(Client.iterate_batches)
    list_batch_results = _blocking(Client.list_batch_results)
    iterate_batch_results = _iterating(Client.iterate_batch_results)
    cancel_batch = _blocking(Client.cancel_batch)
    retry_instance = _blocking(Client.retry_instance)
    set_priority = _blocking(Client.set_priority)
    skip_step = _blocking(Client.skip_step)
    move_token = _blocking(Client.move_token)
    migrate_instance = _blocking(Client.migrate_instance)
    check_migration = _blocking(Client.check_migration)
    edit_variables = _blocking(Client.edit_variables)
    start_instance = _blocking(Client.start_instance)
    start_instances = _blocking(Client.start_instances)
    get_instance = _blocking(Client.get_instance)
    get_why = _blocking(Client.get_why)
    find_instance = _blocking(Client.find_instance)
    list_instances = _blocking(Client.list_instances)
    iterate_instances = _iterating(Client.iterate_instances)
    get_history = _blocking(Client.get_history)
    get_attempts = _blocking(Client.get_attempts)
    get_audit = _blocking(Client.get_audit)
    iterate_audit = _iterating(Client.iterate_audit)
    list_signals = _blocking(Client.list_signals)
    cancel_instance = _blocking(Client.cancel_instance)
    wait_until_ended = _blocking(Client.wait_until_ended)
    complete_user_task = _blocking(Client.complete_user_task)
    signal = _blocking(Client.signal)
    signal_by_key = _blocking(Client.signal_by_key)
    upload_definition = _blocking(Client.upload_definition)
    get_definition = _blocking(Client.get_definition)
    activate_version = _blocking(Client.activate_version)
    delete_definition = _blocking(Client.delete_definition)
    get_impact = _blocking(Client.get_impact)
    list_definitions = _blocking(Client.list_definitions)
    # methods end
