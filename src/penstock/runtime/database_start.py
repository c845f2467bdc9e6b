"""The first use of the database: wait until there is one that takes writes, look at what is between, bring the schema.
What else a start asks of it waits in the same way (`wait_out`): the database may go away again in the middle.

A server that says that it starts, recovers or is a standby is waited for as long as it takes: with much to recover that
is many minutes, and an engine that ended meanwhile would only be started again. One that does not answer, or does not
let us in, is tried for ``outage_wait_seconds``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from penstock.errors import Unavailable
from penstock.log.log import RateLimitedLog, get_logger
from penstock.runtime.retention import prepare_partitions
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import AWAY, READ_ONLY, Database, first_line, is_starting
from penstock.store.db.placement import placed
from penstock.store.db.pooler import refuse_transaction_pooling
from penstock.store.db.schema import SCHEMA_VERSION, check_schema, ensure_schema
from penstock.store.db.vault import KeyMissing
from penstock.store.rows import recorded

PAUSE_S: Final = 0.1
LOG_INTERVAL_S: Final = 5.0

T = TypeVar("T")

log = get_logger(__name__)
_waiting = RateLimitedLog(log, interval_seconds=LOG_INTERVAL_S)


class DatabaseStart:
    """One engine's way to its database. ``on_long_wait`` is called once when it takes longer than
    ``outage_wait_seconds``."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        on_long_wait: Callable[[], Awaitable[None]],
        *,
        migrate: bool = True,
    ) -> None:
        self._settings = settings
        self._database = database
        self._migrate = migrate
        self._on_long_wait = on_long_wait

    async def run(self, join: Callable[[], Awaitable[T]]) -> T:
        """Prepare the database, then ``join`` it; both again while it is away. Raises Unavailable."""

        async def begin() -> T:
            await self._prepare()
            return await join()

        return await wait_out(begin, self._database, self._settings.outage_wait_seconds, self._on_long_wait)

    async def _prepare(self) -> None:
        connect_timeout_s = self._settings.db_connect_timeout_seconds
        with trio.fail_after(connect_timeout_s):
            dsn = await placed(self._database.dsn, self._settings.db_schema)
            self._database.use(dsn)
            connection = await TrioConnection.connect(dsn)
        try:
            with trio.fail_after(connect_timeout_s):
                await refuse_transaction_pooling(connection, dsn)
            if not self._migrate:
                await check_schema(connection)
            elif (found := await ensure_schema(connection)) < SCHEMA_VERSION:
                log.info("schema applied", version=SCHEMA_VERSION, before=found or None)
            await prepare_partitions(connection, self._settings.partition_days)
            if self._settings.encryption_keys is not None:
                await recorded.record_encryption(connection)
        finally:
            connection.close_nowait()


async def wait_out(
    attempt: Callable[[], Awaitable[T]],
    database: Database,
    outage_wait_s: float,
    on_long_wait: Callable[[], Awaitable[None]] | None = None,
) -> T:
    """What an attempt gives that may be made again; made again while the database is away. Raises Unavailable."""
    started = last_sign = trio.current_time()
    while True:
        try:
            return await attempt()
        except KeyMissing:
            raise
        except (*AWAY, Unavailable, trio.TooSlowError) as error:
            why = first_line(error) or "no answer"
            now = trio.current_time()
            if isinstance(error, READ_ONLY) or await is_starting(database.dsn):
                last_sign = now
                _waiting.warning("start", "waiting for the database to take writes", error=why, since_s=now - started)
            elif now - last_sign >= outage_wait_s:
                raise Unavailable(f"the database can't be reached: {why}") from error
        if on_long_wait is not None and trio.current_time() - started >= outage_wait_s:
            await on_long_wait()
            on_long_wait = None
        await trio.sleep(PAUSE_S)
