"""Engines with their runtime services in the test's own process, several on one database."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import trio

from penstock.engine.engine import Engine
from penstock.runtime.lease_sweeper import LeaseSweeper
from penstock.runtime.membership import Membership
from penstock.runtime.supervise import forever
from penstock.settings import Settings
from penstock.store.db.database import Database
from penstock.telemetry.metrics import Metrics
from tests.engine.driver import Driver


class LocalEngine(Driver):
    """``start`` it in a nursery; `crash` ends it as a killed process would: nothing is told to anybody."""

    def __init__(self, dsn: str, **settings: object) -> None:
        self.settings = Settings(**cast(Any, settings))
        self.database = Database(dsn, max_connections=6)
        self.membership = Membership(self.database, self.settings.dispatch_mode.value)
        self._dsn = dsn
        self._scope = trio.CancelScope()
        self.ended = trio.Event()

    async def serve(self, *, services: bool = True, task_status: trio.TaskStatus[LocalEngine]) -> None:
        with self._scope:
            number = await self.membership.join()
            engine = Engine(self.database, self.settings, Metrics("test"), number, self.membership.events)
            super().__init__(engine, self._dsn)
            self.membership.attach(engine)
            self.sweeper = LeaseSweeper(engine)
            engine.events.engine_lost.listen(self.sweeper.scan_soon)
            engine.events.engines_dead.listen(self.sweeper.on_dead)

            async def probe() -> None:
                await engine.polls.wait_probe()
                await engine.polls.probe_once()

            async def fire() -> None:
                await engine.timers.wait_due()
                await engine.timers.fire_once()

            steps = {"listener": self.membership.listen, "membership": self.membership.refresh}
            steps |= {"notifier": self.membership.send, "probe": probe, "timers": fire, "leases": self.sweeper.step}
            async with trio.open_nursery() as nursery:
                for batcher in engine.batchers():
                    await nursery.start(batcher.run)
                for name, step in steps.items() if services else ():
                    nursery.start_soon(partial(forever, name, step))
                task_status.started(self)
                await trio.sleep_forever()
        with trio.CancelScope(shield=True):
            await self.database.close(2)
        self.close()
        self.ended.set()

    async def crash(self) -> None:
        self._scope.cancel()
        await self.ended.wait()
