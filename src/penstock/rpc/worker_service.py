"""``penstock.v1.Worker``: `work_stream` replaces polling."""

from __future__ import annotations

from typing import Final

from grpclib.const import Handler

from penstock.engine.engine import Engine
from penstock.rpc.call import ServerCall
from penstock.rpc.methods import both_stream
from penstock.rpc.work_stream import WorkStream
from penstock.wire import penstock_v1 as w

_PREFIX: Final = "/penstock.v1.Worker/"


class WorkerService:
    """The stream. Calls that take lists are rows (`penstock.api.jobs`)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __mapping__(self) -> dict[str, Handler]:
        return {f"{_PREFIX}Work": both_stream(self.work, w.WorkRequest, w.WorkResponse)}

    async def work(self, call: ServerCall[w.WorkRequest, w.WorkResponse]) -> None:
        """See `work_stream`."""
        await WorkStream(self._engine, call).run()
