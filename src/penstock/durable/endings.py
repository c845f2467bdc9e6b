"""How a run ends, as its journal and its log are told: made of what its workflow function gave or raised. No I/O."""

from __future__ import annotations

import msgspec

from penstock.durable.activation import Activation
from penstock.durable.backend import Ending
from penstock.durable.errors import PayloadTooLarge, Unencodable
from penstock.durable.failure import describe, traceback_of
from penstock.durable.recorded_error import encode_end
from penstock.kernel.errors import Cancelled, NotAwaited


def with_mark(run: Activation, ending: Ending) -> Ending:
    """The ending, with the record that tells of calls without an await. An error's record tells of them itself."""
    if ending.error is not None or not run.not_awaited or not run.kernel.newest:
        return ending
    error = NotAwaited("; ".join(run.not_awaited))
    return msgspec.structs.replace(ending, error=encode_end(error, run.not_awaited))


def ending_of(run: Activation) -> Ending:
    """The end of a run whose function has ended. A result that can't be kept fails it."""
    outcome = run.ending()
    if outcome.error is None:
        try:
            result = run.workflow.encode_result(outcome.value, run.payload_max_bytes, rules=run.kernel.rules)
            return Ending(result=result)
        except (Unencodable, PayloadTooLarge) as error:
            return Ending(failure=describe(error))
    if isinstance(outcome.error, Cancelled):
        return Ending(failure=run.cancel_reason or describe(outcome.error), cancelled=True)
    record = None
    if run.kernel.newest:  # an older App would not know what to do with it
        text = encode_end(outcome.error, run.not_awaited)
        record = text if len(text.encode()) <= run.payload_max_bytes else None
    return Ending(failure=describe(outcome.error), error=record, traceback=traceback_of(outcome.error))
