"""What is used of aiokafka, with types, which it has none of; and how its clients are made.

aiokafka is imported when the first client is made: an engine that polls never loads it. Everything here runs in the
bridge's loop.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, cast


class NoBroker(Exception):
    """No seed broker can be used; the text says of each why."""


class Cluster(Protocol):
    """What a client knows of the cluster."""

    def partitions_for_topic(self, topic: str) -> set[int] | None: ...

    def brokers(self) -> Collection[object]: ...


class Connections(Protocol):
    """``AIOKafkaClient``: connections to all brokers, and metadata kept fresh."""

    cluster: Cluster

    async def close(self) -> None: ...

    async def force_metadata_update(self) -> bool: ...

    def add_topic(self, topic: str) -> object: ...

    def set_topics(self, topics: Collection[str]) -> object: ...

    def get_random_node(self) -> int | None: ...

    async def send(self, node_id: int, request: object) -> Any: ...


class KafkaSender(Protocol):
    """``AIOKafkaProducer``."""

    client: Connections

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def send(
        self, topic: str, value: bytes, key: bytes, *, headers: Sequence[tuple[str, bytes]]
    ) -> asyncio.Future[object]: ...


class Admin(Protocol):
    """``AIOKafkaAdminClient``."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def create_topics(self, new_topics: Sequence[object]) -> Any: ...


def make_sender(options: Mapping[str, Any], *, request_timeout_s: float, max_record_bytes: int) -> KafkaSender:
    """An idempotent producer that waits for all in-sync replicas and adds no delay; not started yet."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        **options,
        acks="all",
        enable_idempotence=True,
        linger_ms=0,
        max_request_size=max_record_bytes,
        request_timeout_ms=round(request_timeout_s * 1000),
    )
    return cast(KafkaSender, producer)


def make_admin(options: Mapping[str, Any], *, request_timeout_s: float) -> Admin:
    """Return a client that creates topics; not started yet."""
    from aiokafka.admin import AIOKafkaAdminClient

    return cast(Admin, AIOKafkaAdminClient(**options, request_timeout_ms=round(request_timeout_s * 1000)))


def abandon(sender: KafkaSender) -> None:
    """Give it up without waiting for records that are not sent; the loop, with all that runs in it, must end then.

    ``stop()`` would wait for them, and it never gives up while the broker is away.
    """
    sender._closed = True  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue] - what stop() does first; else it complains when it is collected


async def find_broker(options: Mapping[str, Any], timeout_s: float) -> str:
    """The first of the seed brokers that answers and takes the credentials, as ``host:port``.

    All are asked at once: aiokafka tries one after the other, so one that swallows packets would hide the others, and
    writes why they can't be reached into its log only.

    Raises:
        NoBroker: none does in time; the text says of each why.
    """
    import aiokafka.conn

    untyped = cast(Any, aiokafka.conn)
    wanted = {name: value for name, value in options.items() if name != "bootstrap_servers"}

    async def ask(host: str, port: int) -> str:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            async with asyncio.timeout(timeout_s):
                connection = await untyped.create_conn(host, port, **wanted)
        except TimeoutError as error:
            raise NoBroker(f"{address} does not answer") from error
        except Exception as error:
            raise NoBroker(f"{address}: {_said(error)}") from error
        connection.close()
        return address

    hosts = cast("list[tuple[str, int, Any]]", untyped.collect_hosts(options["bootstrap_servers"]))
    asked = [asyncio.ensure_future(ask(host, port)) for host, port, _ in hosts]
    causes: list[str] = []
    try:
        for answer in asyncio.as_completed(asked):
            try:
                return await answer
            except NoBroker as error:
                causes.append(str(error))
    finally:
        for task in asked:
            task.cancel()
    raise NoBroker("; ".join(sorted(causes)))


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
