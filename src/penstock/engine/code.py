"""Workflows written as code, as the engine sees them: a generated definition with one job, for executors only.

The engine never runs or knows bodies. A run is an instance of the definition, so that starts, leases, lists, history
and retention are those that there are.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.engine.journal_items import Taken
from penstock.engine.vocabulary import EMPTY_OBJECT, InstanceView


class CodeWorkflow(NamedTuple):
    """A workflow of an app, in a version. Two apps may each have an ``order``: they don't run each other's."""

    name: str
    version: int = 1
    app: str = ""

    @property
    def definition_id(self) -> str:
        """``order``, ``shop:order``."""
        return f"{self.app}:{self.name}" if self.app else self.name

    @property
    def job_type(self) -> str:
        """``code:order@1``, ``code:shop:order@1``."""
        return f"code:{self.definition_id}@{self.version}"


class Code:
    """Registers workflows, starts runs, and gives them to executors."""

    def holder(self, app: str, number: int) -> str:
        """The text under which an executor of this engine holds runs: ``e<engine number>.<tag>/<app>-<number>``."""
        raise NotImplementedError

    async def register(self, workflow: CodeWorkflow) -> int:
        """Make sure that its definition exists; the version of it. Idempotent.

        Raises BadRequest (a name that can't be one), Conflict (the id is a graph's; older engines live here).
        """
        raise NotImplementedError

    async def start(
        self, workflow: CodeWorkflow, arguments: bytes = EMPTY_OBJECT, *, id: str | None = None
    ) -> InstanceView:
        """Start a run. ``arguments`` is a JSON object by parameter name. With ``id`` at most one is ever started: a
        second call gives that one. Registers the workflow when that was not done.

        Raises BadRequest, IdempotencyConflict (the id was used with other arguments), Unavailable.
        """
        raise NotImplementedError

    async def take(
        self, holder: str, workflows: list[CodeWorkflow], max_runs: int, *, wait_s: float, lease_s: float = 0.0
    ) -> list[Taken]:
        """Runs of these workflows under lease, oldest first; waits while there are none. Cancel-safe: what was
        leased to a call that is cancelled goes back."""
        raise NotImplementedError
