"""What waits in the group-commit queues of starts: one request to start an instance."""

from __future__ import annotations

from penstock.access.identity import actor
from penstock.core.rules.start_rules import StartRules
from penstock.engine.advance.advancer import LongItem
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.queues.waiters import Waiter
from penstock.engine.requests.answers import COPIES, MemoryReservation, current_reservation
from penstock.engine.starts.forked_run import Fork
from penstock.errors import PenstockError
from penstock.store.rows.batches import BatchPlace
from penstock.store.rows.calls import CodeCall
from penstock.telemetry.spans import current_call
from penstock.wire import model
from penstock.wire.model import StartRequest
from penstock.wire.noun import text_bytes


class StartItem(LongItem[model.Instance]):
    """One start."""

    __slots__ = (
        "actor", "asked", "assumed", "call", "fork", "found", "id", "loaded", "place", "request",
        "reservation", "reserved",
        "rules", "span", "together", "waiter", "wrong",
    )  # fmt: skip

    def __init__(
        self,
        request: StartRequest,
        rules: StartRules | None = None,
        call: CodeCall | None = None,
        place: BatchPlace | None = None,
        reservation: MemoryReservation | None = None,
        by: str | None = None,
        reserved: int = 0,
        fork: Fork | None = None,
    ) -> None:
        """``fork``: of a durable run that begins with the journal of another one.

        ``call``: of the durable run that waits for its end; it has an instance key then. ``place``: in a batch,
        which it is the item of. ``reservation``: of a call that no task serves, and ``by``: who makes it; of all others
        the task says so. ``reserved``: the id that the instance gets, whose caller has it already; 0: a new one."""
        super().__init__()
        self.call, self.fork = call, fork
        self.place = place
        self.request = request
        self.asked = self.rules = rules  # its definition may add to these
        self.reservation = current_reservation() if reservation is None else reservation
        self.actor = (actor() if reservation is None else by) if place is None else f"batch:{place.batch}"
        self.span = current_call()
        self.id = self.reserved = reserved
        self.together = False  # all that are in one transaction with it come to be, or none
        self.found = False  # its answer is an instance that was there before
        self.loaded: LoadedDefinition | None = None
        self.assumed = False  # that is the latest version as far as this engine remembers
        self.waiter: Waiter | None = None
        self.wrong: PenstockError | None = None  # with its arguments: it is refused unless it was started before

    def answer(self, answer: model.Instance) -> None:
        """With room for its own variables reserved before: what there is beyond them is counted too."""
        more_bytes = text_bytes(answer.variables) - len(self.request.variables)
        if more_bytes > 0 and not self.settled:
            self.reservation.add(COPIES * more_bytes)
        super().answer(answer)

    @property
    def key(self) -> tuple[object, ...]:
        """What another start may wait for: its rule's key, else its idempotency key, else definition and instance
        key."""
        request = self.request
        window = None if self.rules is None else self.rules.window
        if window is not None:
            return request.definition_id, *window
        if request.idempotency_key is not None:
            return request.idempotency_key, None
        return request.definition_id, request.instance_key

    @property
    def is_plain(self) -> bool:
        """Return whether nothing but its instance is written."""
        return self.rules is None and self.place is None and self.fork is None

    @property
    def keyed(self) -> bool:
        request, rules = self.request, self.rules
        windowed = rules is not None and rules.keyed
        return request.idempotency_key is not None or request.instance_key is not None or windowed

    @property
    def has_own_key(self) -> bool:
        """Return whether one key is all that other starts are asked about: its idempotency key, or the instance key of
        a SQL function's start."""
        request = self.request
        if self.call is not None or not self.is_plain:
            return False
        if self.reserved:
            return request.instance_key is not None and request.idempotency_key is None
        return request.idempotency_key is not None and request.instance_key is None

    @property
    def has_flow(self) -> bool:
        """Return whether it says in what order its jobs come."""
        return self.request.flow_key is not None or self.request.priority is not None
