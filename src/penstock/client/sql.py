"""Start, send, signal, publish and cancel in your own transaction, on the database that has Penstock's tables.

Give your connection to `Requests`, or `AsyncRequests` where calls on it are awaited. What you ask for happens once your
transaction has committed, and only then; an engine carries it out within milliseconds. It takes psycopg's connections,
SQLAlchemy's `Session` and `Connection`, Django's connection and any other DB-API connection of PostgreSQL; awaited are
psycopg's `AsyncConnection`, asyncpg's connections, SQLAlchemy's `AsyncSession` and `AsyncConnection`. None of these is
imported here but by the one that you use.

A wrong argument raises the error of your driver, whose SQLSTATE says why: docs/your-transaction.md lists them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, NamedTuple, cast

import msgspec

__all__ = ["AsyncRequests", "Requests"]


class _Argument(NamedTuple):
    name: str
    value: str | None
    type: str = "text"


class _Call(NamedTuple):
    """A call of a SQL function. Each argument goes as text, so that no driver has to know its type."""

    function: str
    arguments: Sequence[_Argument]

    def text(self, schema: str, placeholders: Sequence[str], *, percent: bool = False) -> str:
        """Return the statement. ``percent``: the driver reads `%` as the beginning of a placeholder."""
        name = schema.replace('"', '""')
        name = name.replace("%", "%%") if percent else name
        prefix = "penstock_" if schema == "public" else ""
        given = ", ".join(
            f"{argument.name} => CAST(CAST({place} AS text) AS {argument.type})"
            for argument, place in zip(self.arguments, placeholders, strict=True)
        )
        return f'SELECT "{name}".{prefix}{self.function}({given})'

    @property
    def values(self) -> list[str | None]:
        return [argument.value for argument in self.arguments]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _variables(value: Mapping[str, object] | None) -> _Argument:
    return _Argument("variables", None if value is None else _json(value), "jsonb")


def _given(*arguments: _Argument) -> list[_Argument]:
    return [argument for argument in arguments if argument.value is not None]


def _start(
    definition: str,
    variables: Mapping[str, object] | None,
    instance_key: str | None,
    business_key: str | None,
    version: int | None,
    start_at: datetime | None,
    priority: int | None,
    flow_key: str | None,
    keep_instance_key: bool,
) -> _Call:
    if start_at is not None and start_at.tzinfo is None:
        raise ValueError("start_at: has no time zone; give one, such as datetime.UTC")
    arguments = _given(
        _variables(variables),
        _Argument("instance_key", instance_key),
        _Argument("business_key", business_key),
        _Argument("version", None if version is None else str(version), "int"),
        _Argument("start_at", None if start_at is None else start_at.isoformat(), "timestamptz"),
        _Argument("priority", None if priority is None else str(priority), "int"),
        _Argument("flow_key", flow_key),
        _Argument("keep_instance_key", "true" if keep_instance_key else None, "boolean"),
    )
    return _Call("start", [_Argument("definition", definition), *arguments])


def _send(run: str, name: str, payload: object, message_id: str | None) -> _Call:
    arguments = _given(_Argument("message_id", message_id))
    body = _Argument("payload", _json(payload), "jsonb")
    return _Call("send", [_Argument("run", run), _Argument("name", name), body, *arguments])


def _signal(instance: str, step: str, variables: Mapping[str, object] | None, signal_id: str | None) -> _Call:
    arguments = _given(_variables(variables), _Argument("signal_id", signal_id))
    return _Call("signal", [_Argument("instance", instance), _Argument("step", step), *arguments])


def _publish(
    name: str,
    key: str,
    variables: Mapping[str, object] | None,
    ttl: str | None,
    message_id: str | None,
    deliver: str | None,
) -> _Call:
    arguments = _given(
        _variables(variables),
        _Argument("ttl", ttl),
        _Argument("message_id", message_id),
        _Argument("deliver", deliver),
    )
    return _Call("publish", [_Argument("name", name), _Argument("key", key), *arguments])


def _cancel(instance: str, reason: str | None, compensate: bool) -> _Call:
    arguments = _given(_Argument("reason", reason), _Argument("compensate", "true" if compensate else None, "boolean"))
    return _Call("cancel", [_Argument("instance", instance), *arguments])


class Requests:
    """What your transaction asks of Penstock.

    Args:
        connection: psycopg's `Connection`, SQLAlchemy's `Session` or `Connection`, Django's `connection`, or another
            DB-API connection whose placeholders are `%s`. Its transaction is the one that counts; outside of one, with
            autocommit, each call is a transaction of its own.
        schema: that of Penstock's tables; `public` where they lie there.
    """

    def __init__(self, connection: Any, *, schema: str = "penstock") -> None:
        if _comes_from(connection, "asyncpg") or _is_async(connection):
            raise TypeError(f"{type(connection).__name__} is an async connection: use AsyncRequests")
        self._connection = connection
        self._schema = schema

    def start(
        self,
        definition: str,
        variables: Mapping[str, object] | None = None,
        *,
        instance_key: str | None = None,
        business_key: str | None = None,
        version: int | None = None,
        start_at: datetime | None = None,
        priority: int | None = None,
        flow_key: str | None = None,
        keep_instance_key: bool = False,
    ) -> str:
        """Start an instance of a definition, or a run of a workflow function, and return its id.

        Args:
            definition: its id.
            variables: with which it starts.
            instance_key: unique among the open instances of the definition. A second start with it is refused
                (SQLSTATE ``PK006``), while the first transaction is open it waits.
            business_key: by which people find it.
            version: of the definition; the active one by default.
            start_at: it begins at that time.
            priority: of its jobs, 0 to 9, lower first.
            flow_key: of its jobs.
            keep_instance_key: the key stays taken after the instance's end.
        """
        call = _start(
            definition, variables, instance_key, business_key, version, start_at, priority, flow_key, keep_instance_key
        )
        return cast(str, self._call(call))

    def send(self, run: str, name: str, payload: object = None, *, message_id: str | None = None) -> int:
        """Send a message to a run of a workflow function, and return the number of the request. A second one with the
        same ``message_id`` is the same message."""
        return cast(int, self._call(_send(run, name, payload, message_id)))

    def signal(
        self,
        instance: str,
        step: str,
        variables: Mapping[str, object] | None = None,
        *,
        signal_id: str | None = None,
    ) -> int:
        """Signal a step that waits, or will: until then the signal is kept. Return the number of the request. A second
        one with the same ``signal_id`` is the same signal."""
        return cast(int, self._call(_signal(instance, step, variables, signal_id)))

    def publish(
        self,
        name: str,
        key: str,
        variables: Mapping[str, object] | None = None,
        *,
        ttl: str | None = None,
        message_id: str | None = None,
        deliver: str | None = None,
    ) -> int:
        """Publish a message to the step that waits for its name and key, and return the number of the request.

        Args:
            name: of the message.
            key: its correlation key.
            variables: what it brings.
            ttl: how long it is kept for a step that is not there yet, an ISO 8601 duration; a day by default.
            message_id: a second message with the same one is the same message.
            deliver: ``ONE``, which is the default, or ``ALL``.
        """
        return cast(int, self._call(_publish(name, key, variables, ttl, message_id, deliver)))

    def cancel(self, instance: str, reason: str | None = None, *, compensate: bool = False) -> int:
        """Cancel an instance, or ask a run to end, and return the number of the request. With ``compensate`` what it
        did is compensated first. An instance that has ended meanwhile is left as it is."""
        return cast(int, self._call(_cancel(instance, reason, compensate)))

    def _call(self, call: _Call) -> object:
        connection = self._connection
        if _comes_from(connection, "sqlalchemy"):
            return connection.execute(*_for_sqlalchemy(call, self._schema)).scalar_one()
        options: dict[str, Any] = {}
        if _comes_from(connection, "psycopg"):
            options["row_factory"] = import_module("psycopg.rows").tuple_row
        statement = call.text(self._schema, ["%s"] * len(call.arguments), percent=True)
        with connection.cursor(**options) as cursor:
            cursor.execute(statement, call.values)
            return _only(cursor.fetchone())


class AsyncRequests:
    """As `Requests`, on a connection whose calls are awaited: psycopg's `AsyncConnection`, a connection of asyncpg,
    SQLAlchemy's `AsyncSession` or `AsyncConnection`."""

    def __init__(self, connection: Any, *, schema: str = "penstock") -> None:
        if not (_comes_from(connection, "asyncpg") or _is_async(connection)):
            raise TypeError(f"{type(connection).__name__} is not an async connection: use Requests")
        self._connection = connection
        self._schema = schema

    async def start(
        self,
        definition: str,
        variables: Mapping[str, object] | None = None,
        *,
        instance_key: str | None = None,
        business_key: str | None = None,
        version: int | None = None,
        start_at: datetime | None = None,
        priority: int | None = None,
        flow_key: str | None = None,
        keep_instance_key: bool = False,
    ) -> str:
        """Start an instance, as `Requests.start`."""
        call = _start(
            definition, variables, instance_key, business_key, version, start_at, priority, flow_key, keep_instance_key
        )
        return cast(str, await self._call(call))

    async def send(self, run: str, name: str, payload: object = None, *, message_id: str | None = None) -> int:
        """Send a message to a run, as `Requests.send`."""
        return cast(int, await self._call(_send(run, name, payload, message_id)))

    async def signal(
        self,
        instance: str,
        step: str,
        variables: Mapping[str, object] | None = None,
        *,
        signal_id: str | None = None,
    ) -> int:
        """Signal a step, as `Requests.signal`."""
        return cast(int, await self._call(_signal(instance, step, variables, signal_id)))

    async def publish(
        self,
        name: str,
        key: str,
        variables: Mapping[str, object] | None = None,
        *,
        ttl: str | None = None,
        message_id: str | None = None,
        deliver: str | None = None,
    ) -> int:
        """Publish a message, as `Requests.publish`."""
        return cast(int, await self._call(_publish(name, key, variables, ttl, message_id, deliver)))

    async def cancel(self, instance: str, reason: str | None = None, *, compensate: bool = False) -> int:
        """Cancel an instance, as `Requests.cancel`."""
        return cast(int, await self._call(_cancel(instance, reason, compensate)))

    async def _call(self, call: _Call) -> object:
        connection = self._connection
        if _comes_from(connection, "sqlalchemy"):
            return (await connection.execute(*_for_sqlalchemy(call, self._schema))).scalar_one()
        if _comes_from(connection, "asyncpg"):
            numbers = [f"${number}" for number in range(1, len(call.arguments) + 1)]
            return await cast("Awaitable[object]", connection.fetchval(call.text(self._schema, numbers), *call.values))
        statement = call.text(self._schema, ["%s"] * len(call.arguments), percent=True)
        async with connection.cursor(row_factory=import_module("psycopg.rows").tuple_row) as cursor:
            await cursor.execute(statement, call.values)
            return _only(await cursor.fetchone())


def _for_sqlalchemy(call: _Call, schema: str) -> tuple[Any, dict[str, str | None]]:
    names = [f"p{number}" for number in range(len(call.arguments))]
    statement = call.text(schema.replace(":", "\\:"), [f":{name}" for name in names])
    return import_module("sqlalchemy").text(statement), dict(zip(names, call.values, strict=True))


def _comes_from(connection: object, package: str) -> bool:
    """Return whether it is a connection of a package, or of a class that somebody made of one."""
    return any(each.__module__.partition(".")[0] == package for each in type(connection).__mro__)


def _is_async(connection: object) -> bool:
    """Return whether it is awaited; its classes say so in their names, in psycopg as in SQLAlchemy."""
    return any(each.__name__.lower().startswith("async") for each in type(connection).__mro__)


def _only(row: Any) -> object:
    """The one value of a row, whatever rows are to the connection."""
    return next(iter(cast("Mapping[str, object]", row).values())) if isinstance(row, Mapping) else row[0]
