"""One run of a handler: time limit, cancellation, and what its end means for the job.

Decides what is reported and reports nothing itself. Must let the cancellation of the worker itself through.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

import anyio
import msgspec

from penstock.user_text import text_of, traceback_text
from penstock.wire.model import Completion, Failure, Park
from penstock.worker.checkpoint import format_of
from penstock.worker.context import JobContext, set_current_job
from penstock.worker.errors import Later, NonRetryable, Retry, StepError, WaitFor
from penstock.worker.handler import Handler, Pools
from penstock.worker.held import LeasedJob, StopReason

# The engine keeps 4 KiB of an error text; characters may take several bytes.
MAX_ERROR_MESSAGE_CHARS = 4096
MAX_STACK_TRACE_BYTES = 16_384
LEFT_OUT = b"\n...\n"
"""In the middle of a long stack trace."""

# The SQL function `complete` refuses an argument with it: the same variables are refused the next time, too.
REFUSED_FOR_GOOD_SQLSTATE = "PK003"

Report = Completion | Failure | Park


async def run_handler(
    handler: Handler,
    held: LeasedJob,
    context: JobContext,
    slots: Sequence[anyio.Semaphore],
    pools: Pools,
) -> Report | None:
    """Run the handler for a held job to its end, once there is a free slot. Its time limit counts from then on.

    Returns what to report; None when there is nothing to report, because the job was lost, cancelled or is to be
    given back (``held.stop_reason`` says which). Never raises but for the worker's own cancellation: whatever else the
    handler ends with fails the job.
    """
    set_current_job(context)
    result: msgspec.Raw | None = None
    finished = False
    failure: Failure | Park | None = None
    with held.scope:
        taken: list[anyio.Semaphore] = []
        try:
            for slot in slots:
                await slot.acquire()
                taken.append(slot)
            held.begin()
            _log_other_format(handler, held)
            if handler.timeout_s is not None:
                held.scope.deadline = anyio.current_time() + handler.timeout_s
            result = await handler(context, pools)
            finished = True
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and handler.is_async:
                held.interrupt = error  # Ctrl-C, where nobody handles signals: it ends the worker, and the job counts
            failure = _failure_or_cancelled(held, context, error)
        finally:
            for slot in taken:
                slot.release()
    held.running = False
    if held.scope.cancel_called and held.stop_reason is None:
        held.stop_reason = StopReason.DEADLINE
    if held.stop_reason in (StopReason.LEASE_LOST, StopReason.CANCELLED):
        return None
    if finished:  # also past its deadline, or while the worker stops: the work is done
        return Completion(job_id=held.job.id, attempt=held.job.attempt, variables=result)
    if held.stop_reason is StopReason.DEADLINE:
        return _failed(held, f"not finished within its time limit of {handler.timeout_s:g} s", retryable=True)
    return None if held.stop_reason is StopReason.STOPPING else failure


def _log_other_format(handler: Handler, held: LeasedJob) -> None:
    """Say that there is a checkpoint which the handler does not get: it may begin work anew that was done."""
    own, found = handler.checkpoint_format, format_of(held.job.checkpoint)
    if own is None or held.job.checkpoint is None or found == own:
        return
    has = "no format" if found is None else f"format {found}"
    held.log.warning(
        "its checkpoint has %s, and the handler has checkpoint_format=%d: the handler gets no checkpoint, "
        "and may read this one with job.checkpoint_of(%s)",
        has,
        own,
        found,
    )


def _failure_or_cancelled(held: LeasedJob, context: JobContext, error: BaseException) -> Failure | Park | None:
    """As `_failure`, of what may be a cancellation: that of the handler's scope, or of the worker, is raised again."""
    cancelled = anyio.get_cancelled_exc_class()
    ours, rest = (error, None) if isinstance(error, cancelled) else (None, error)
    if isinstance(error, BaseExceptionGroup):
        ours, rest = cast("BaseExceptionGroup[BaseException]", error).split(cancelled)
    if ours is not None and anyio.current_effective_deadline() == -math.inf:
        if rest is not None:
            context.log.debug("the handler ended with errors while it was cancelled", exc_info=rest)
        raise ours
    if rest is None:  # asyncio only: the handler awaited something that others cancelled. Nobody cancelled the handler.
        return _failed(held, "the handler was cancelled from within", retryable=True)
    return _failure(held, context, rest)


def _failure(held: LeasedJob, context: JobContext, error: BaseException) -> Failure | Park | None:
    """Return the report about an exception; None for what only followed from being told to stop."""
    if held.scope.cancel_called:
        context.log.debug("the handler ended with an error after it was asked to stop", exc_info=error)
        return None
    for inner in _flat(error):
        if isinstance(inner, StepError):
            context.log.info("job failed with the error %s: %s", inner.code, text_of(inner))
            failure = _failed(held, text_of(inner), retryable=inner.retryable)
            return msgspec.structs.replace(failure, error_code=inner.code, variables=inner.variables)
    for inner in _flat(error):
        if isinstance(inner, NonRetryable):
            context.log.warning("job failed (not retryable): %s", text_of(inner))
            failure = _failed(held, text_of(inner) or type(inner).__name__, retryable=False)
            return msgspec.structs.replace(failure, stack_trace=_trace_of(error))
        if _sqlstate(inner) == REFUSED_FOR_GOOD_SQLSTATE:
            context.log.warning("job failed (not retryable): %s", text_of(inner))
            failure = _failed(held, f"{type(inner).__name__}: {text_of(inner)}", retryable=False)
            return msgspec.structs.replace(failure, stack_trace=_trace_of(error))
    for inner in _flat(error):
        if isinstance(inner, Later | WaitFor):
            context.log.info("job parked: %s", text_of(inner))
            return Park(job_id=held.job.id, attempt=held.job.attempt, until=inner.until, signal=inner.signal)
    for inner in _flat(error):
        if isinstance(inner, Retry):
            context.log.info("job failed and will be retried: %s", text_of(inner))
            return _failed(held, text_of(inner), retryable=True, retry_after_s=inner.after_s or None)
    context.log.error("job failed: %s", type(error).__name__, exc_info=error)
    first = next(_flat(error))
    failure = _failed(held, f"{type(first).__name__}: {text_of(first)}", retryable=True)
    return msgspec.structs.replace(failure, stack_trace=_trace_of(error))


def _trace_of(error: BaseException) -> str | None:
    """Return its traceback; of a long one the beginning, which has the frames where the message is long, and the end.
    None where that can't be written: an error of the user's class may raise again."""
    try:
        text = traceback_text(error)
    except Exception:
        return None
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_STACK_TRACE_BYTES:
        half = (MAX_STACK_TRACE_BYTES - len(LEFT_OUT)) // 2
        data = data[:half] + LEFT_OUT + data[-half:]
    return data.decode("utf-8", "ignore")


def _sqlstate(error: BaseException) -> object:
    try:
        return getattr(error, "sqlstate", None)  # psycopg's: it is no dependency
    except Exception:  # a property of the user's class
        return None


def _flat(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside a group (handlers may use task groups), or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _flat(inner)
    else:
        yield error


def _failed(held: LeasedJob, message: str, *, retryable: bool, retry_after_s: float | None = None) -> Failure:
    # A lone surrogate has no JSON form, and an error text must never be the reason that a report is refused.
    text = message[:MAX_ERROR_MESSAGE_CHARS].encode("utf-8", "replace").decode()
    return Failure(
        job_id=held.job.id,
        attempt=held.job.attempt,
        retryable=retryable,
        error_message=text,
        retry_after_s=retry_after_s,
    )
