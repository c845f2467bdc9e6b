"""The journals of runs: what executors append, what others tell, and the states in between (held, parked, blocked).

Everybody who has something for a run writes into one journal, in one order, under the lock of its token. ``token.mail``
counts what others wrote: parking and ending are refused while the holder has not seen all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.engine.journal_items import (
    AppendAnswer,
    Extended,
    Held,
    JournalPage,
    Mail,
    Message,
    NewRecord,
    RunEnd,
)


class Journal:
    """The operations of executors on the runs they hold, and of everybody else on any run.

    Raises LeaseLost whenever the caller does not hold the run any more: then it discards its copy. Raises Unavailable
    when the database was away for too long, and nothing is known of what became of it; ask again, with the same
    arguments.
    """

    async def append(
        self, held: Held, records: Sequence[NewRecord], *, after: int, mail: int, extend: bool = False
    ) -> AppendAnswer:
        """Write records, in this order, all or none. One append at a time for a run.

        ``after`` is the position of the last record that the caller knows, ``mail`` how many records of others it has
        read. The lease is extended when half of it is over, or with ``extend``. Raises LeaseLost, PayloadTooLarge.
        """
        raise NotImplementedError

    async def read(self, instance: int, after: int = 0) -> JournalPage:
        """A page of the journal: records beyond position ``after``, at most 5,000 and 4 MB."""
        raise NotImplementedError

    async def park(
        self,
        held: Held,
        *,
        mail: int,
        due_at: float | None,
        view: bytes | None = None,
        branches: bytes | None = None,
    ) -> bool:
        """Let go of a run that waits: until ``due_at`` (seconds since 1970; None: for ever) or until it is told
        something.

        False: there is mail; read the journal and go on. ``view`` and ``branches`` as in `extend`. Raises LeaseLost.
        """
        raise NotImplementedError

    async def finish(self, held: Held, end: RunEnd, *, mail: int) -> bool:
        """End a run. False: there is mail; read the journal and go on. Idempotent. Raises LeaseLost."""
        raise NotImplementedError

    async def block(self, held: Held, reason: str) -> float:
        """Let go of a run that this code can't go on with; it comes back after a pause, that is answered, in seconds:
        5 s first, twice as long each time, 5 min at most. Never fails a run. Raises LeaseLost."""
        raise NotImplementedError

    async def extend(self, held: Held, *, view: bytes | None = None, branches: bytes | None = None) -> Extended:
        """A heartbeat: a lease of full length from now on. ``view`` (JSON) is what clients see of the run, ``branches``
        (JSON, see `runs`) which of its branches are open; None keeps what is there. Raises LeaseLost."""
        raise NotImplementedError

    async def give_back(self, held: Held) -> None:
        """Let go of a run at once, for others to take. One that is lost already is no error."""
        raise NotImplementedError

    async def tell(self, instance: int, message: Message) -> None:
        """Write somebody else's record, and wake the run or tell its holder.

        Raises NotFound, Conflict (it has ended, or is no run of code), TooManyRequests (too many unread messages),
        IdempotencyConflict (the ``dedup`` came with something else).
        """
        raise NotImplementedError

    async def wait_mail(self, holder: str) -> list[Mail]:
        """Wait for news of the runs that ``holder`` has; one waiter at most. A hint: what is lost here is found
        with the next append, park or heartbeat. `Jobs.wait_lost` tells of runs that were ended by force.

        Cancel-safe."""
        raise NotImplementedError
