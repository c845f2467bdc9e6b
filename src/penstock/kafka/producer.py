"""The relay's producer: keeps a connection to the brokers, publishes batches, and says what became of each record.

The Trio side of the bridge. A session (`session.py`) whose producer can't be trusted any more – a time-out, a cancelled
batch, a refusal – is dropped with its thread, and a new one connects. So nothing is sent later that was given up, and
nothing piles up during an outage. Decides nothing about rows: that is `relay.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import trio

from penstock.errors import BrokerUnavailable
from penstock.kafka.bridge import Bridge, BridgeClosed
from penstock.kafka.record import KafkaRecord, PublishOutcome, Result
from penstock.kafka.results import NOT_CONNECTED, TIMED_OUT, UNANSWERED
from penstock.kafka.security import client_options
from penstock.kafka.session import KafkaSession, Limits
from penstock.log.log import RateLimitedLog, get_logger
from penstock.log.throttle import throttle
from penstock.settings import Settings
from penstock.telemetry.metrics import Metrics

# An idle connection is asked for a sign of life: `/readyz` shows an outage before the next record finds it.
PROBE_INTERVAL_S: Final = 5.0
FIRST_RECONNECT_PAUSE_S: Final = 0.1
MAX_RECONNECT_PAUSE_S: Final = 2.0
# The session keeps its own time; this only catches a loop that is stuck.
BRIDGE_MARGIN_S: Final = 3.0
FINISH_TIMEOUT_S: Final = 0.25
CLOSE_TIMEOUT_S: Final = 2.0

log = get_logger(__name__)


class _Connection:
    """A session and the thread it lives in."""

    def __init__(self, bridge: Bridge, session: KafkaSession) -> None:
        self.bridge = bridge
        self.session = session
        self.spent = trio.Event()
        self.publishing = 0
        self.idle = trio.Event()
        self.answered_at = trio.current_time()

    async def wait_idle(self) -> None:
        """Let batches that are under way come to their end, for a moment: what ended this connection is one of them."""
        with trio.move_on_after(FINISH_TIMEOUT_S):
            while self.publishing:
                self.idle = trio.Event()
                await self.idle.wait()

    async def close(self) -> None:
        with trio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            try:
                await self.bridge.call(self.session.close)
            except Exception as error:
                log.debug("the Kafka client failed while it was closed", error=error)
        await self.bridge.close()


class KafkaProducer:
    """See `record.Producer`. Run ``run`` as a supervised task; the other methods work while it does."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._connection: _Connection | None = None
        self._away: str | None = "not connected yet"
        self._limits: Limits = {}
        self._log = RateLimitedLog(log)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Stay connected until cancelled; then close within about 4 s, also while the brokers are away.

        Raises:
            BrokerUnavailable: before ``started()`` only: no broker answered in `kafka_connect_timeout_seconds`, or
                none took the credentials.
        """
        throttle("aiokafka")
        connection = await self._connect()
        task_status.started()
        while True:
            try:
                await self._watch(connection)
                await connection.wait_idle()
            finally:
                self._retire(connection)
                await connection.close()
            connection = await self._reconnect()

    async def publish(self, records: Sequence[KafkaRecord]) -> list[Result]:
        """Send one batch, wait for every answer; see `record.Producer`. UNKNOWN at once while there is no connection.

        Takes `kafka_publish_timeout_seconds` at most, and a second for topics not seen before. Cancelling unsends
        nothing, but the client is dropped: what had not left it by then never will.
        """
        if (connection := self._connection) is None:
            results = [Result(PublishOutcome.UNKNOWN, NOT_CONNECTED, self._away or "reconnecting")] * len(records)
            return self._counted(results)
        timeout_s = self._settings.kafka_publish_timeout_seconds
        results = [Result(PublishOutcome.UNKNOWN, TIMED_OUT, "the Kafka client is stuck")] * len(records)
        spent = True
        connection.publishing += 1
        try:
            with trio.move_on_after(timeout_s + BRIDGE_MARGIN_S):
                results, spent = await connection.bridge.call(connection.session.publish, records)
        except BridgeClosed:
            results = [Result(PublishOutcome.UNKNOWN, NOT_CONNECTED, "disconnected meanwhile")] * len(records)
        finally:
            connection.publishing -= 1
            connection.idle.set()
            if spent:
                self._retire(connection)
        if any(result.code not in UNANSWERED for result in results):
            connection.answered_at = trio.current_time()
            self._away = None
        elif results:
            self._away = results[0].reason
        return self._counted(results)

    def away(self) -> str | None:
        """Why the brokers can't be reached now, in a sentence; None while they answer. Doesn't wait."""
        return self._away

    async def missing_topics(self, names: Collection[str]) -> list[str]:
        """Those of the topics that can't be published to, sorted: they don't exist, or are not ours to use.

        Raises:
            BrokerUnavailable: no answer within `kafka_publish_timeout_seconds`.
        """
        connection = self._connected()
        try:
            return sorted(await connection.bridge.call(connection.session.describe, list(names)))
        except BridgeClosed as error:
            raise BrokerUnavailable("the connection to Kafka ended while the engine read its topics") from error

    async def create_topics(self, names: Collection[str]) -> dict[str, str]:
        """Create topics; those that could not be: name → reason. One that exists already is fine.

        Raises:
            BrokerUnavailable: no answer within `kafka_publish_timeout_seconds`; some may have been created.
        """
        connection = self._connected()
        try:
            return await connection.bridge.call(connection.session.create, list(names))
        except BridgeClosed as error:
            raise BrokerUnavailable("the connection to Kafka ended while the engine created topics") from error

    # -- the connection

    def _connected(self) -> _Connection:
        if self._connection is None:
            raise BrokerUnavailable(f"not connected to Kafka: {self._away}")
        return self._connection

    async def _connect(self) -> _Connection:
        bridge = await Bridge.open()
        try:
            with trio.fail_after(2 * self._settings.kafka_connect_timeout_seconds + BRIDGE_MARGIN_S):
                session = await bridge.call(
                    KafkaSession.open, self._settings, client_options(self._settings), self._limits
                )
        except trio.TooSlowError as error:
            await bridge.close()
            raise BrokerUnavailable("the Kafka client is stuck while it connects") from error
        except BaseException:
            await bridge.close()
            raise
        self._connection = _Connection(bridge, session)
        self._away = None
        return self._connection

    async def _reconnect(self) -> _Connection:
        pause_s = FIRST_RECONNECT_PAUSE_S
        while True:
            try:
                connection = await self._connect()
            except Exception as error:  # a fault of the client library must not end an engine that ran
                self._away = error.reason if isinstance(error, BrokerUnavailable) else repr(error)
                self._metrics.producer_errors[NOT_CONNECTED].inc()
                self._log.warning("away", "the Kafka brokers are away", reason=self._away)
            else:
                log.info("connected to Kafka again")
                return connection
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_RECONNECT_PAUSE_S)

    async def _watch(self, connection: _Connection) -> None:
        """Wait until the connection is of no use any more."""
        while not connection.spent.is_set():
            with trio.move_on_after(PROBE_INTERVAL_S):
                await connection.spent.wait()
            idle_s = trio.current_time() - connection.answered_at
            if connection.spent.is_set() or connection.publishing or idle_s < PROBE_INTERVAL_S:
                continue
            if await self._answers(connection):
                self._away = None
            elif not connection.publishing:
                self._away = "the brokers do not answer"
                self._log.warning("away", "the Kafka brokers are away", reason=self._away)
                return

    @staticmethod
    async def _answers(connection: _Connection) -> bool:
        try:
            return await connection.bridge.call(connection.session.answers)
        except BridgeClosed:
            return False

    def _retire(self, connection: _Connection) -> None:
        """Nothing is published through it any more; `run` closes it."""
        connection.spent.set()
        if self._connection is connection:
            self._connection = None

    def _counted(self, results: list[Result]) -> list[Result]:
        for result in results:
            if result.outcome is not PublishOutcome.ACKED:
                self._metrics.producer_errors[result.code].inc()
        return results
