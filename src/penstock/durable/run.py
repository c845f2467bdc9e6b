"""One run as others see it: its result, what it shows, and what may be said to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import trio

from penstock.client.errors import TimedOut
from penstock.durable.codec import decode, encode
from penstock.durable.errors import RunBlocked, RunCancelled, RunFailed
from penstock.durable.workflow import Workflow
from penstock.wire.fields import json_text

if TYPE_CHECKING:
    from penstock.durable.local import LocalRuns

R = TypeVar("R")

LOOK_FIRST_S, LOOK_MAX_S = 0.05, 1.0


class News:
    """What this process knows of the ends of runs before the database is asked."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[trio.Event]] = {}
        self.held: set[str] = set()  # runs that the executor of this process has: their ends are told
        self.blocked: dict[str, str] = {}

    def tell(self, instance_id: str) -> None:
        """Something has become of the run."""
        for event in self._waiting.get(instance_id, ()):
            event.set()

    async def wait(self, instance_id: str, at_most_s: float) -> None:
        """Until something has, or for so long."""
        event = trio.Event()
        self._waiting.setdefault(instance_id, []).append(event)
        try:
            with trio.move_on_after(at_most_s):
                await event.wait()
        finally:
            events = self._waiting[instance_id]
            events.remove(event)
            if not events:
                del self._waiting[instance_id]


class Run(Generic[R]):
    """A handle. ``id`` is the one that the run was started with, else its instance's, which is ``instance_id``.

    All calls raise the errors of `penstock.client`.
    """

    def __init__(
        self,
        id: str,
        instance_id: str,
        runs: Callable[[], LocalRuns],
        news: News,
        workflow: Workflow[..., R] | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        self._is_new = is_new  # so there is no sense in looking for its end at once
        self.id, self.instance_id = id, instance_id
        self._runs, self._news, self._workflow = runs, news, workflow

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    async def result(self, timeout_s: float | None = None) -> R:
        """What the body gave, when it has ended. Raises `RunFailed`, `RunCancelled`, TimedOut.

        Raises `RunBlocked` when this process found that its code can't go on with the run.
        """
        pause_s = LOOK_FIRST_S
        if self._is_new:
            await self._news.wait(self.instance_id, pause_s)
        with trio.move_on_after(float("inf") if timeout_s is None else timeout_s):
            while True:
                seen = await self._runs().look(self.instance_id)
                if seen.completed_at is not None:
                    return self._result(seen.status, seen.failure_reason or "", json_text(seen.variables))
                blocked = self._news.blocked.get(self.instance_id)
                if blocked is not None:
                    raise RunBlocked(self.id, blocked)
                is_held = self.instance_id in self._news.held
                await self._news.wait(self.instance_id, LOOK_MAX_S if is_held else pause_s)
                pause_s = min(1.5 * pause_s, LOOK_MAX_S)
        raise TimedOut(f"run {self.id} has not ended within {timeout_s} s")

    def _result(self, status: str, reason: str, variables: bytes) -> R:
        if status == "CANCELLED":
            raise RunCancelled(self.id, reason)
        if status != "COMPLETED":
            raise RunFailed(self.id, reason)
        text = bytes(msgspec.json.decode(variables, type=dict[str, msgspec.Raw]).get("result", b"null")).decode()
        type_ = Any if self._workflow is None else self._workflow.parameters.result_type()
        value: R = decode(text, type_)
        return value

    async def status(self) -> str:
        """ACTIVE, WAITING, COMPLETED, FAILED or CANCELLED."""
        return (await self._runs().look(self.instance_id)).status

    async def send(self, name: str, value: object = None, *, dedup: str | None = None) -> None:
        """A message, kept until the body receives it. With ``dedup`` a second one is the same one."""
        await self._runs().send(self.instance_id, name, encode(value, f"message {name!r}"), dedup)

    async def cancel(self, reason: str | None = None, *, force: bool = False) -> None:
        """Cancel the body, which cleans up; or, with ``force``, end it without."""
        await self._runs().cancel(self.instance_id, reason, force=force)

    async def view(self) -> Any:
        """What the body showed last with `set_view`; None before."""
        return (await self._runs().tree(self.instance_id)).get("view")

    async def tree(self) -> dict[str, Any]:
        """The run and its branches, as ``GET /v1/instances/{id}/tree`` shows them."""
        return await self._runs().tree(self.instance_id)
