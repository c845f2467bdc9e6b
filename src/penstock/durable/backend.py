"""What an executor asks of whoever keeps the journals: the `Backend`; and an `App` for its caller: `CallerRuns`.
`local` has both on an engine in this process, `remote` on one that it is connected to.

All calls are fenced by the lease: who lost it gets `RunLeaseLost`, and gives its copy of the run up. A call waits out
an outage of the database as long as the backend does, then raises `Away`; nothing is taken for undone that was not
proved to be. Times are in seconds since 1970, by the backend's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from penstock.kernel.operation import Outcome
from penstock.kernel.record import RULES, Record

if TYPE_CHECKING:
    from trio import CapacityLimiter

    from penstock.durable.child import ChildCall
    from penstock.durable.step import StepCall, StepInfo
    from penstock.wire.model import Instance, StartRequest
    from penstock.wire.update import RunUpdate, RunView, UpdateCall


class RunLeaseLost(Exception):
    """Another executor has the run, or it has ended: whatever this one still does does not count."""


class JournalFull(Exception):
    """The run's journal has as many records as it may; nothing was written."""


class Refused(Exception):
    """What was to be written can't be kept; nothing was."""


class Away(Exception):
    """The journals can't be reached now. Whether the call took effect is not known."""


COMMITTED: Final = Outcome(value=object())
"""Of a step: its own transaction has written the record, which is to be read."""


class AppendPermit(Protocol):
    """The appends of a run, of which a step's own commit is one: only one of them at a time."""

    async def begin(self) -> None:
        """Wait for it. Cancel-safe."""
        ...

    def end(self, *, committed: bool) -> None:
        """It is over; what was committed is read before anything else is written."""
        ...


class RecordPage(msgspec.Struct, frozen=True):
    """Records of a journal, in order. ``mail`` is how many others wrote, up to here; ``more``: there are others."""

    records: Sequence[Record]
    mail: int
    more: bool = False


class SavedPage(NamedTuple):
    """Records of one run, in order, for a replay. ``more``: there are others. ``began_at``: when the time of the run
    began. ``arguments``: what it was started with, of the first page; None: the engine is older and does not say."""

    records: list[Record]
    more: bool
    began_at: float
    arguments: str | None


class LeasedRun(msgspec.Struct, frozen=True):
    """A run under this executor's lease. ``key`` is the backend's own name for it, ``id`` the instance's, ``name`` the
    id that it was started with where that is known.

    ``fresh``: nobody has written anything yet, so there is nothing to read. ``page``: the first of its journal, where
    that came with it. ``expiries`` counts the leases that ended without a record, one after the other.
    """

    key: str
    id: str
    attempt: int
    workflow: str
    version: int
    arguments: str
    started_at: float
    now: float
    lease_s: float
    fresh: bool = False
    expiries: int = 0
    fence: object = None  # the backend's own
    name: str = ""
    page: RecordPage | None = None
    rules: int = RULES  # by which what comes next is delivered

    def __str__(self) -> str:
        return self.name or self.id


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Where an appended record stands in the journal."""

    pos: int
    at: float


class Ending(msgspec.Struct, frozen=True):
    """How a run ends: with ``result`` (JSON), or with ``failure``, for people. ``cancelled``: as was asked. ``view``:
    what it showed last (JSON). ``error``: what its function raised, as the journal keeps it (JSON). ``traceback``: for
    the log."""

    result: str | None = None
    failure: str | None = None
    cancelled: bool = False
    view: str | None = None
    error: str | None = None
    traceback: str | None = None


class Beat(msgspec.Struct, frozen=True):
    """A lease that was extended. ``mail`` is how many records others have written so far."""

    lease_s: float
    mail: int


class Shown(msgspec.Struct, frozen=True):
    """What others see of a run while it is open: what `set_view` set, and its open branches. JSON; None: as it was."""

    view: str | None = None
    branches: str | None = None


class Backend(Protocol):
    """The journals, seen by one executor.

    `append`, `park` and `finish` are called without a task: before they use anything of Trio they await
    `eager.need_task`."""

    async def take(self, max_runs: int, max_wait_s: float) -> list[LeasedRun]:
        """Runs that wait for an executor, under a lease each; waits for the first. Cancel-safe. Asked for
        by several tasks at a time."""
        ...

    async def wait_mailbox(self) -> list[str]:
        """Waits until somebody writes into the journal of a run that is held here; the keys. A hint."""
        ...

    def was_watch(self, key: str) -> bool:
        """Return whether the news of a run were that somebody waits for what it shows; asked once for each key."""
        ...

    async def read(self, leased: LeasedRun, after: int) -> RecordPage:
        """Return the journal behind that position. Raises `RunLeaseLost` when the run has ended, `Away`."""
        ...

    async def marks(self, leased: LeasedRun) -> list[str]:
        """Of a journal that is longer than a page: the marks of all its records. Raises `Away`."""
        ...

    async def append(self, leased: LeasedRun, records: Sequence[Record], after: int, mail: int) -> list[Stored] | None:
        """Writes the records in this order; one append at a time for a run. ``after`` is the position of the last
        record that the caller knows, ``mail`` how many of others it has seen.

        None when the caller has to `read` before it delivers any: others have written, or it was in doubt for a while
        whether the records were written. Raises `RunLeaseLost`, `JournalFull`, `Away`.
        """
        ...

    async def park(self, leased: LeasedRun, mail: int, due: float | None, shown: Shown) -> bool:
        """Gives the run up until then, or until somebody writes. False when somebody has: read, and go on."""
        ...

    async def finish(self, leased: LeasedRun, mail: int, ending: Ending) -> bool:
        """Ends the run. False when somebody has written meanwhile: read, and ask again. Idempotent. Raises
        `Refused`."""
        ...

    async def continue_as_new(self, leased: LeasedRun, mail: int, begun: Record, kept: Sequence[int]) -> bool:
        """The run goes on as a new one: its journal is that record, whose name is another one each time, and the
        messages at the positions ``kept``. False when somebody has written meanwhile: read, and ask again. Idempotent.
        Raises `RunLeaseLost`, `Refused`, `Away`."""
        ...

    async def block(self, leased: LeasedRun, reason: str) -> float:
        """This code can't go on with the run: another try after a pause, which is given in seconds. It never fails."""
        ...

    async def release(self, leased: LeasedRun) -> None:
        """The run waits for another executor, at once."""
        ...

    async def transact(
        self,
        leased: LeasedRun,
        call: StepCall,
        info: StepInfo,
        after: int,
        permit: AppendPermit,
        limiter: CapacityLimiter,
    ) -> Outcome:
        """Runs a step that is a transaction, in a thread of the limiter: `COMMITTED`, or what is to be recorded.
        ``after``: a position in the journal behind which its outcome will stand. Raises `RunLeaseLost`."""
        ...

    async def start(self, workflow: str, version: int, arguments: str, id: str) -> str:
        """Starts a run, or finds the one that has this id; gives its instance's. Raises `StartRefused`."""
        ...

    async def start_child(self, leased: LeasedRun, path: str, call: ChildCall, id: str) -> None:
        """Starts what the operation at ``path`` waits for, once; ``id`` is its own, where it was given none. Its end
        becomes a record with that path. Raises `StartRefused`, `RunLeaseLost`, `Away`."""
        ...

    async def cancel_child(self, leased: LeasedRun, path: str) -> bool:
        """Asks it to end; False where it was never started, and now never will be. Raises `RunLeaseLost`, `Away`."""
        ...

    async def waits_for(self, workflow: str) -> str | None:
        """What the latest run of a workflow waits for, in words. A hint. Raises the errors of `penstock.client`."""
        ...

    async def send(self, run_id: str, name: str, payload: str, dedup: str, *, sender: str, force: bool = False) -> None:
        """A message to any run; with the same ``dedup`` once. ``sender``: who it is, for people. Raises `SendRefused`
        where it can't be delivered ever; with ``force`` that it does not fit is no reason."""
        ...

    async def extend(self, leased: LeasedRun, shown: Shown) -> Beat:
        """Return a lease of full length from now on. Raises `RunLeaseLost`, `Away`."""
        ...


class StartedRun(NamedTuple):
    """A run that was started; ``deduplicated``: one that was there before has answered."""

    instance_id: str
    deduplicated: bool = False


class CallerRuns(Protocol):
    """What an `App` asks for its caller. Raises the errors of `penstock.client`."""

    @property
    def payload_max_bytes(self) -> int:
        """Of arguments, results, messages and values of steps."""
        ...

    @property
    def outage_wait_s(self) -> float:
        """How long whoever waits for a result waits out an outage."""
        ...

    async def start(
        self, workflow: str, version: int, arguments: str, id: str | None, asked: StartRequest | None = None
    ) -> StartedRun:
        """A new run, or the one that has this id, or with which ``asked`` has it answered."""
        ...

    async def find(self, id: str, workflows: Mapping[str, object], *, or_any: bool = False) -> str:
        """Return the instance id of the run with this id: of these workflows, else of any if there are none, or
        ``or_any``."""
        ...

    async def latest(self, workflow: str, status: str | None, limit: int, *, blocked: bool = False) -> list[Instance]:
        """The latest runs of a workflow, or those of them that are blocked, newest first, without their arguments."""
        ...

    async def read_run(self, instance_id: str) -> Instance:
        """The run as it is now."""
        ...

    async def find_ended(self, instance_ids: Sequence[str]) -> Sequence[str]:
        """Those that have ended, or are not there."""
        ...

    async def journal(self, instance_id: str, cursor: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """Some records of a run, oldest first, as REST shows them, and where the next ones are."""
        ...

    async def tree(self, instance_id: str) -> dict[str, Any]:
        """Return the run's branches, as REST shows them."""
        ...

    async def send(
        self, instance_id: str, name: str, payload: str, dedup: str | None, *, id: str, force: bool = False
    ) -> None:
        """A message. ``id``: as errors name the run. ``force``: also one that does not fit."""
        ...

    async def ask(self, instance_id: str, call: UpdateCall, *, id: str) -> RunUpdate:
        """Call an update; what became of it so far. ``id`` as of `send`."""
        ...

    async def find_update(self, instance_id: str, update_id: str, wait_s: int, *, id: str) -> RunUpdate:
        """Return what became of a call, after so long at most."""
        ...

    async def view(self, instance_id: str, key: str | None, wait_s: int, *, id: str) -> RunView:
        """Return what the run shows, as soon as there is something, or it has ended, or after so long."""
        ...

    async def cancel(self, instance_id: str, reason: str | None, *, force: bool, id: str) -> None:
        """Ask the run to end, or end it."""
        ...

    async def fork(
        self, instance_id: str, path: str, fork_id: str | None, *, later_messages: bool, id: str
    ) -> StartedRun:
        """Start another run with the journal of this one, up to an operation."""
        ...

    async def retry(self, instance_id: str, from_path: str | None, note: str | None, *, id: str) -> None:
        """Let a failed run go on."""
        ...


class Opened(NamedTuple):
    """Where an `App` has its runs, while it is open. ``backend``: None for a client."""

    runs: CallerRuns
    backend: Backend | None
    rest_url: str | None = None
