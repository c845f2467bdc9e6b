"""The same games of queues, starts, batches and schedules over REST: two engines behind real HTTP servers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import httpx

from tests.engine.driver import Driver
from tests.model.flow_games import FlowGame
from tests.model.flow_hands import QUEUE, WORKER, Hands, Held
from tests.model.test_games_over_rest import engines

__all__ = ["engines"]  # pytest finds the fixture here

WANTED = {
    "start",
    "poll",
    "complete",
    "fail",
    "release",
    "beat",
    "cancel",
    "put",
    "pause",
    "prioritize",
    "batch",
    "fired",
}


class RestHands(Hands):
    """``https`` are clients of the two engines."""

    def __init__(self, drivers: Sequence[Driver], source: random.Random, https: Sequence[httpx.AsyncClient]) -> None:
        super().__init__(drivers, source)
        self._https = https

    async def call(self, method: str, path: str, body: object = None, also: int = 200, key: str | None = None) -> Any:
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = await self.source.choice(self._https).request(method, f"/v1/{path}", json=body, headers=headers)
        assert answer.is_success or answer.status_code == also, answer.text
        return answer.json() if answer.content else None

    async def start(self, body: dict[str, Any]) -> str | None:
        found = await self.call("POST", "instances", body, also=429)
        assert "id" in found or found["error"] == "throttled"
        return str(found["id"]) if "id" in found else None

    async def poll(self, job_type: str, most: int) -> list[str]:
        body = {"workerId": WORKER, "jobTypes": [job_type], "maxJobs": most}
        jobs = (await self.call("POST", "jobs/poll", body))["jobs"]
        self.held |= {job["instanceId"]: Held(job["id"], job["attempt"]) for job in jobs}
        return [job["instanceId"] for job in jobs]

    async def complete(self, instance: str) -> None:
        await self._of_job(instance, "complete")

    async def fail(self, instance: str) -> None:
        await self._of_job(instance, "fail", retryable=True)

    async def beat(self, instance: str) -> None:
        await self._of_job(instance, "heartbeat")

    async def _of_job(self, instance: str, what: str, **fields: Any) -> None:
        await self.call("POST", f"jobs/{self.held[instance].id}/{what}", {"workerId": WORKER, **fields})

    async def release(self, instance: str) -> None:
        held = self.held[instance]
        jobs = [{"jobId": held.id, "attempt": held.attempt}]
        await self.call("POST", "jobs/release", {"workerId": WORKER, "jobs": jobs})

    async def cancel(self, instance: str) -> None:
        await self.call("POST", f"instances/{instance}/cancel", {})

    async def prioritize(self, instance: str, priority: int) -> None:
        await self.call("POST", f"instances/{instance}/priority", {"priority": priority})

    async def put_queue(self, body: dict[str, Any]) -> None:
        await self.call("PUT", f"queues/{QUEUE}", body)

    async def delete_queue(self) -> None:
        await self.call("DELETE", f"queues/{QUEUE}")

    async def pause_queue(self, *, paused: bool) -> None:
        await self.call("POST", f"queues/{QUEUE}/{'pause' if paused else 'resume'}")

    async def create_batch(self, items: list[dict[str, Any]], on_complete: str, key: str) -> str:
        body = {"items": items, "onComplete": on_complete}
        return str((await self.call("POST", "batches", body, key=key))["id"])

    async def cancel_batch(self, id: str) -> bool:
        return "error" not in await self.call("POST", f"batches/{id}/cancel", {}, also=409)

    async def batch(self, id: str) -> dict[str, Any]:
        return dict(await self.call("GET", f"batches/{id}"))

    async def results(self, id: str) -> list[tuple[str, str | None, str | None]]:
        items = (await self.call("GET", f"batches/{id}/results"))["items"]
        return [(one["state"], one.get("instance", {}).get("id"), one.get("error")) for one in items]

    async def put_schedule(self, id: str, body: dict[str, Any]) -> None:
        await self.call("PUT", f"schedules/{id}", body)

    async def hold_schedule(self, id: str, *, paused: bool) -> None:
        await self.call("POST", f"schedules/{id}/{'pause' if paused else 'resume'}")

    async def trigger(self, id: str) -> tuple[datetime, str]:
        run = await self.call("POST", f"schedules/{id}/trigger")
        return datetime.fromisoformat(run["at"]), run["outcome"]

    async def runs(self, id: str) -> list[tuple[datetime, str, str | None]]:
        runs = (await self.call("GET", f"schedules/{id}"))["runs"]
        return [(datetime.fromisoformat(run["at"]), run["outcome"], run.get("instanceId")) for run in runs]


async def test_limits_starts_batches_and_schedules_over_rest(engines: list[tuple[Driver, str]]) -> None:
    drivers = [driver for driver, _ in engines]
    clock = drivers[0].clock
    clock.stop()
    seen: Counter[str] = Counter()
    async with (
        httpx.AsyncClient(base_url=engines[0][1], timeout=60) as one,
        httpx.AsyncClient(base_url=engines[1][1], timeout=60) as two,
    ):
        for seed in (20, 21):
            source = random.Random(seed)
            seen += await FlowGame(RestHands(drivers, source, [one, two]), clock, seed).play()
    assert {*seen} >= WANTED, seen
