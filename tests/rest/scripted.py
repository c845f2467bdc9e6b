"""What the adapter's own tests need: an engine that answers as told, and a client that speaks bare ASGI.

The stand-in records the requests that it is given. It decides nothing: what an engine would refuse, a test has to say.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import trio

from penstock.core.graph.definition import Definition, DefinitionLimits
from penstock.core.parsing.parsing import parse_definition
from penstock.engine.advance.quarantine import Quarantine
from penstock.engine.requests.answers import AnswerMemory
from penstock.engine.requests.hiding import Hiding
from penstock.engine.requests.payload import PayloadLimits
from penstock.rest.app import make_app
from penstock.settings import Settings
from penstock.telemetry.metrics import Metrics
from penstock.wire.model import Instance, Job
from penstock.wire.page import Page

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


def instance(**changes: Any) -> Instance:
    given: dict[str, Any] = {
        "id": "1f",
        "definition_id": "orders",
        "definition_version": 2,
        "status": "ACTIVE",
        "current_step_ids": ["pay"],
        "variables": msgspec.Raw(b'{"n":1}'),
        "started_at": NOON,
    }
    return Instance(**{**given, **changes})


def job(id: str = "1f-1-0", **changes: Any) -> Job:
    given: dict[str, Any] = {
        "id": id,
        "job_type": "charge",
        "instance_id": "1f",
        "step_id": "pay",
        "step_execution_id": id,
        "retries_remaining": 3,
        "variables": msgspec.Raw(b"{}"),
        "lock_expires_at": NOON,
        "status": "LOCKED",
        "worker_id": "w",
        "locked_at": NOON,
        "created_at": NOON,
        "attempt": 1,
        "idempotency_key": "1f-1-0",
        "definition_id": "orders",
        "definition_version": 2,
        "business_key": "order-7",
    }
    return Job(**{**given, **changes})


class Part:
    """One noun of the engine."""

    def __init__(self, engine: ScriptedEngine, noun: str) -> None:
        self._engine = engine
        self._noun = noun

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = f"{self._noun}.{name}"

        async def call(*args: Any, **options: Any) -> Any:
            await trio.lowlevel.checkpoint()
            self._engine.calls[operation].append((*args, options) if options else args)
            answer = self._engine.answers[operation]
            if isinstance(answer, BaseException):
                raise answer
            return answer if not callable(answer) else await cast("Callable[..., Awaitable[Any]]", answer)(*args)

        return call


class ScriptedEngine:
    """``on("jobs.complete", answer)``: a value, an error to raise, or an async function of the arguments."""

    def __init__(self, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.limits = PayloadLimits.of(self.settings)
        self.metrics = Metrics("test")
        self.quarantine = Quarantine(self.metrics)
        self.traces = None
        self.hiding = Hiding(())
        self.answer_memory = AnswerMemory(self.settings.answer_max_memory_bytes)
        self.answers: dict[str, Any] = defaultdict(lambda: None)
        self.calls: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.definitions, self.instances = Part(self, "definitions"), Part(self, "instances")
        self.jobs, self.tasks, self.runs = Part(self, "jobs"), Part(self, "tasks"), Part(self, "runs")
        self.inline_jobs = Part(self, "inline_jobs")
        self.repair, self.open_work = Part(self, "repair"), Part(self, "open_work")
        self.migrations, self.impact = Part(self, "migrations"), Part(self, "impact")
        self.definition_use, self.drafts = Part(self, "definition_use"), Part(self, "drafts")
        self.simulations = Part(self, "simulations")
        self.watch, self.diagnosis = Part(self, "watch"), Part(self, "standing")
        self.messages, self.attempts = Part(self, "messages"), Part(self, "attempts")
        self.schedules, self.queues = Part(self, "schedules"), Part(self, "queues")
        self.batches, self.bulk, self.code = Part(self, "batches"), Part(self, "bulk"), Part(self, "code")
        self.audit_trail, self.overview = Part(self, "audit_trail"), Part(self, "overview")
        self.sql_requests = Part(self, "sql_requests")
        self.updates, self.declarations = Part(self, "updates"), Part(self, "declarations")
        self.forks = Part(self, "forks")
        self.inbox, self.failures = Part(self, "inbox"), Part(self, "failures")
        self.ready = Part(self, "engine").ready
        self.on("definitions.parse", self._parse)

    async def _parse(self, read: Callable[[], object], size_bytes: int) -> Definition:
        return parse_definition(read(), limits=DefinitionLimits(steps_max_count=self.settings.definition_max_steps))

    def on(self, operation: str, answer: Any) -> None:
        self.answers[operation] = answer

    def on_list(self, *pieces: list[Instance], total: int, estimate: bool = False) -> None:
        """What the list of instances finds, and in which pieces it is read."""

        async def read(found: list[int]) -> AsyncGenerator[list[Instance]]:
            for piece in pieces:
                await trio.lowlevel.checkpoint()
                yield list(piece)

        self.on(
            "instances.find", Page(items=list(range(sum(map(len, pieces)))), total=total, total_is_estimate=estimate)
        )
        setattr(self.instances, "read", read)  # noqa: B010 - no coroutine, as its neighbours are

    def one(self, operation: str) -> Any:
        """The only request that an operation was given."""
        (args,) = self.calls[operation]
        return args[0] if len(args) == 1 else args


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str, str]:
        """(status, code, reason), after a look at the form of the error object."""
        found = self.json
        assert self.headers["content-type"] == "application/json"
        assert found["reason"] == found["message"]
        return self.status, found["error"], found["reason"]


class Rest:
    """The application on a scripted engine, called without a server."""

    def __init__(self, engine: ScriptedEngine, **options: Any) -> None:
        self.engine = engine
        self.app = make_app(cast(Any, engine), **options)
        self.gone = trio.Event()
        """Set it and the client went away."""
        self.extensions: dict[str, Any] = {}
        """Of the server, as ASGI has them."""
        self.pieces: list[int] = []
        """The bytes of each message with a part of a body."""

    async def send(
        self,
        method: str,
        target: str,
        body: bytes | Sequence[bytes] = b"",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request as a server would hand it over; a body in several parts is a chunked one."""
        raw_path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": _unquote(raw_path),
            "raw_path": raw_path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "extensions": self.extensions,
        }
        parts = [body] if isinstance(body, bytes) else list(body)
        answer = Answer()

        async def receive() -> dict[str, Any]:
            if parts:
                part = parts.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(parts)}
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            await trio.lowlevel.checkpoint()
            if message["type"] == "http.response.start":
                assert not answer.status
                answer.status = message["status"]
                for name, value in message["headers"]:
                    assert name.decode().lower() not in answer.headers
                    answer.headers[name.decode().lower()] = value.decode()
            else:
                answer.body += message.get("body", b"")
                self.pieces.append(len(message.get("body", b"")))

        with trio.fail_after(60):
            await self.app(scope, receive, send)
        return answer

    async def post(self, target: str, body: Any = None, **headers: str) -> Answer:
        """POST a value as JSON; bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.send("POST", target, data, named)

    async def get(self, target: str, **headers: str) -> Answer:
        return await self.send("GET", target, headers=headers)


def _unquote(path: str) -> str:
    from urllib.parse import unquote

    return unquote(path)
