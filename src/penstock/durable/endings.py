"""How a run ends, as its journal and its log are told: made of what its workflow function gave or raised. No I/O."""

from __future__ import annotations

from penstock.durable.activation import Activation
from penstock.durable.backend import Ending
from penstock.durable.errors import PayloadTooLarge, Unencodable
from penstock.durable.failure import describe, traceback_of
from penstock.durable.recorded_error import encode_error
from penstock.kernel.errors import Cancelled, NotAwaited


def _mark(run: Activation) -> str | None:
    """The record that tells people of a run that did not do what its function says."""
    if not run.not_awaited or not run.kernel.newest:
        return None
    return encode_error(NotAwaited("; ".join(run.not_awaited)))


def ending_of(run: Activation) -> Ending:
    """The end of a run whose function has ended. A result that can't be kept fails it."""
    outcome = run.ending()
    if outcome.error is None:
        try:
            result = run.workflow.encode_result(outcome.value, run.payload_max_bytes, rules=run.kernel.rules)
            return Ending(result=result, error=_mark(run))
        except (Unencodable, PayloadTooLarge) as error:
            return Ending(failure=describe(error))
    if isinstance(outcome.error, Cancelled):
        return Ending(failure=run.cancel_reason or describe(outcome.error), cancelled=True)
    record = None
    if run.kernel.newest:  # an older App would not know what to do with it
        text = encode_error(outcome.error)
        record = text if len(text.encode()) <= run.payload_max_bytes else None
    return Ending(failure=describe(outcome.error), error=record, traceback=traceback_of(outcome.error))
