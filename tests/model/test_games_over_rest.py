"""The same games over REST: two engines behind real HTTP servers, and nothing looked at but their answers.

After each move instance, history, audit trail, kept signals and the list of instances must be what the token game says.
Between the moves come calls that must change nothing: results that come twice or too late, by thieves, with a wrong
attempt, for steps that are not open, in batches with bad neighbours. At the end the database's invariants are checked.

``PENSTOCK_REST_GAMES=2000`` plays that many games, ``PENSTOCK_REST_GAMES_FROM=5000`` those of other seeds.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import timedelta
from itertools import count, groupby, islice
from typing import Any

import httpx
import msgspec
import pytest
import trio

from penstock.core.parsing.parsing import parse_definition
from penstock.http import HttpServer, listen
from penstock.rest.app import make_app
from penstock.testing.clock import DatabaseClock
from penstock.testing.definitions import Json
from penstock.testing.random_definitions import MESSAGE, START_VARIABLES, random_definition
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.model.moves import MAX_AUTOMATIC, MAX_WORK, PARK_SIGNAL, PARK_UNTIL, SIGNAL, Move, output_of
from tests.model.reference_model import TASKS, ReferenceModel, kind
from tests.model.test_games_in_database import GAMES_AT_ONCE, MOVES, Played, seq_of, without_times
from tests.shares import in_shares

GAMES_DEFAULT = 60
GAMES = int(os.environ.get("PENSTOCK_REST_GAMES", GAMES_DEFAULT))
FIRST = int(os.environ.get("PENSTOCK_REST_GAMES_FROM", "20000"))
TASKS_MIN = 7
INTERRUPTED = "interrupted by boundary timer"
ENDED = ("COMPLETED", "FAILED", "CANCELLED")


class PlayedOverRest(Played):
    """One game. ``https`` are clients of the two engines; a call takes one of them at random."""

    def __init__(self, engines: list[Driver], https: list[httpx.AsyncClient], clock: DatabaseClock, seed: int) -> None:
        super().__init__(engines, clock, seed)
        self.https = https
        self.running: list[str] = []
        self.known: dict[str, str] = {}
        self.migrated = 0
        self.completed: set[str] = set()
        self.polled: dict[str, dict[str, Any]] = {}
        self.finished: list[dict[str, Any]] = []
        self.calls: Counter[str] = Counter()
        self.worker = f"w{seed}"

    async def call(self, method: str, path: str, body: object = None, **query: Any) -> tuple[int, Any]:
        self.calls[f"{method} {path.split('/')[2]}"] += 1
        http = self.source.choice(self.https)
        content = None if body is None else msgspec.json.encode(body)
        answer = await http.request(method, path, content=content, params=query)
        return answer.status_code, answer.json() if answer.content else None

    async def get(self, path: str, **query: Any) -> Any:
        status, found = await self.call("GET", path, **query)
        assert status == 200, found
        return found

    async def begin(self) -> str:
        self.known = {step.id: step.type.value for step in (*self.all_steps, *parse_definition(self.other).steps)}
        return await super().begin()

    async def upload(self, body: Json) -> None:
        status, _ = await self.call("POST", "/v1/definitions", body)
        assert status == 201

    @property
    def key(self) -> str:
        return f"key/{self.seed}"

    async def start(self) -> str:
        fields = {"instanceKey": self.key, "keepInstanceKey": True, "delay": self.delay}
        body = {"definitionId": self.body["id"], "variables": START_VARIABLES, **fields}
        status, found = await self.call("POST", "/v1/instances", body)
        assert status == 201
        return str(found["id"])

    async def send(
        self, id: str | None, step: str, output: dict[str, Any], buffer: bool, *, by_key: bool = False
    ) -> None:
        path = (
            f"/v1/definitions/{self.body['id']}/keys/key%2F{self.seed}" if by_key else f"/v1/instances/{self.instance}"
        )
        query = {"buffer": "true"} if buffer else {}
        status, found = await self.call(
            "POST", f"{path}/signals/{step}", output, **query, **({} if id is None else {"signalId": id})
        )
        assert status == 204, found

    # -- moves

    async def make(self, move: Move) -> None:
        game = self.game
        assert game is not None
        path = f"/v1/instances/{self.instance}"
        if move.what == "fire":
            _, token, seq = (int(part, 16) for part in self.running[move.place].split("-"))
            await self.fire(token, seq, move.index)
            return
        if move.what in ("cancel", "undo", "retry"):
            what = "retry" if move.what == "retry" else "cancel"
            body: Json = {"reason": "cancelled"} if move.what != "undo" else {"reason": "cancelled", "compensate": True}
            status, found = await self.call("POST", f"{path}/{what}", body)
            assert (status, found["id"]) == (200, self.instance)
            return
        if move.what == "edit":
            edited = {"set": output_of(move), "remove": [move.removed], "note": "because"}
            status, found = await self.call("POST", f"{path}/variables", edited)
            assert (status, found.get("id")) == (200, self.instance), found
            return
        if move.what in ("skip", "move"):
            await self.repair_by_hand(move)
            return
        if move.what == "migrate":
            await self.migrate()
            return
        if move.what == "fire for all":
            await self.fire(*self.wholes()[move.place], move.index)
            return
        if move.what == "keep signal":
            for _ in range(move.times):
                await self.signal(move.step, output_of(move), early=True)
            return
        if move.what in ("publish", "publish to all"):
            await self.publish(move)
            return
        step = game.steps[game.open_tokens[move.place].step]
        if move.what == "signal job":
            await self.signal(SIGNAL, output_of(move))
        elif kind(step) == "CALL_ACTIVITY":
            _, token, seq = (int(part, 16) for part in self.running[move.place].split("-"))
            await self.end_child(token, seq, move)
        elif kind(step) == "USER_TASK":
            field = self.source.choice(["variables", "result"])
            status, found = await self.call(
                "POST", f"{path}/user-tasks/{step['id']}/complete", {field: output_of(move)}
            )
            assert status == 204, found
        elif kind(step) == "WAIT":
            await self.signal(step["id"], output_of(move))
        else:
            job = await self.take(self.running[move.place])
            self.compare_job(game, job["variables"], game.open_tokens[move.place])
            await self.report(job, move)

    async def publish_once(self, id: str, key: str, output: dict[str, Any], deliver: str) -> tuple[list[str], bool]:
        about = {"name": f"{MESSAGE}-{self.seed}", "correlationKey": key, "messageId": id, "deliver": deliver}
        status, found = await self.call("POST", "/v1/messages", {**about, "variables": output})
        assert status == 200, found
        kept = (await self.get("/v1/messages", name=about["name"], limit=200))["items"]
        assert sum(not one["taken"] for one in kept) <= len(self.moves)
        return [one["instanceId"] for one in found["delivered"]], found["kept"]

    async def may_repair(self, what: str, about: dict[str, Any]) -> bool:
        status, found = await self.call("POST", f"/v1/instances/{self.instance}/{what}", about)
        assert (status, found.get("id")) == (200, self.instance) or (status, found["error"]) == (409, "conflict"), found
        return status == 200

    async def may_migrate(self, version: int) -> bool:
        """Tried first, then done: with the same answer."""
        path, body = f"/v1/instances/{self.instance}/migrate", {"version": version, "steps": self.renamed}
        status, tried = await self.call("POST", path, {**body, "dryRun": True})
        assert status == 200, tried
        status, found = await self.call("POST", path, {**body, "note": "because"})
        assert status == (200 if tried["possible"] else 409), found
        self.migrated += status == 200
        return status == 200

    async def take(self, execution: str) -> dict[str, Any]:
        """The job of an execution, under lease; all others of the game are taken on the way."""
        body = {"workerId": self.worker, "jobTypes": self.types, "maxJobs": 100, "leaseSeconds": 60}
        token = int(execution.split("-")[1], 16)
        for lifted in (False, True):
            if lifted:
                await self.fairness_order.lift()
            before = self.fairness_order.running()
            status, found = await self.call("POST", "/v1/jobs/poll", body)
            assert status == 200
            assert self.fairness_order.keeps_to_its_limit(before)
            for job in found["jobs"]:
                assert (job["instanceId"], job["status"], job["workerId"]) == (self.instance, "LOCKED", self.worker)
                assert job["id"] == job["stepExecutionId"]
                self.polled[job["id"]] = job
            if execution in self.polled and self.is_held(token, self.polled[execution]["attempt"]):
                break
        return self.polled[execution]

    async def park(self, job: dict[str, Any], move: Move) -> None:
        """Twice is once."""
        body: Json = {"workerId": self.worker, "attempt": job["attempt"]}
        if move.index != PARK_SIGNAL:
            body["until"] = (self.clock.now() + timedelta(hours=1)).isoformat()
        if move.index != PARK_UNTIL:
            body["signal"] = SIGNAL
        for _ in range(self.source.randint(1, 2)):
            status, found = await self.call("POST", f"/v1/jobs/{job['id']}/park", body)
            assert status == 204, found

    async def report(self, job: dict[str, Any], move: Move) -> None:
        """The end of a job: alone or in a batch with others that change nothing, with its attempt or without."""
        if move.what == "park":
            await self.park(job, move)
            return
        complete = move.what == "complete"
        item: Json = {} if complete else {"retryable": move.what != "fail for good", "errorMessage": "boom"}
        if move.what in ("complete", "err"):
            item["variables"] = output_of(move)
        if move.code:
            item["errorCode"] = move.code
        if self.source.random() < 0.5:
            item["attempt"] = job["attempt"]
        action = "complete" if complete else "fail"
        if self.source.random() < 0.5:
            status, found = await self.call("POST", f"/v1/jobs/{job['id']}/{action}", {"workerId": self.worker, **item})
            assert status == 204, found
        else:
            bad: list[Any] = [
                7,
                {"jobId": "1f-1-1", "retryable": True},
                {"jobId": job["id"], "attempt": 999, "retryable": True},
            ]
            items = [*bad, {"jobId": job["id"], **item}]
            self.source.shuffle(items)
            status, found = await self.call("POST", f"/v1/jobs/{action}", {"workerId": self.worker, "results": items})
            assert status == 200
            outcomes = {
                msgspec.json.encode(given): one["outcome"] for given, one in zip(items, found["results"], strict=True)
            }
            assert outcomes.pop(msgspec.json.encode({"jobId": job["id"], **item})) == "ok"
            late = "cancelled" if "cancelled" in outcomes.values() else "lease-lost"  # the other one ended the instance
            assert Counter(outcomes.values()) == Counter(["invalid", "not-found", late])
        if complete:
            self.finished.append(job)

    # -- what must change nothing

    async def disturb(self) -> None:
        if self.source.random() < 0.3:
            await super().disturb()
            return
        await self.source.choice([self.repeat, self.steal, self.misuse, self.misuse, self.give_back, self.come_back])()

    async def repeat(self) -> None:
        """Once more what a job's worker reported."""
        finished = [job for job in self.finished if job["id"] in self.completed]
        if not finished:
            return
        job = self.source.choice(finished)
        item: Json = {"jobId": job["id"], "retryable": True, "variables": {"n": 7, "twice": True}}
        action = self.source.choice(["complete", "fail"])
        if self.source.random() < 0.5:
            status, found = await self.call("POST", f"/v1/jobs/{job['id']}/{action}", {"workerId": self.worker, **item})
            assert status == 204, found
        else:
            body = {"workerId": self.worker, "results": [{**item, "attempt": self.source.choice([1, job["attempt"]])}]}
            _, found = await self.call("POST", f"/v1/jobs/{action}", body)
            assert found["results"][0]["outcome"] in ("already-completed", "lease-lost")
        status, found = await self.call("POST", f"/v1/jobs/{job['id']}/heartbeat", {"workerId": self.worker})
        assert (status, found["error"]) == (409, "lease-lost")

    async def steal(self) -> None:
        """By a worker who does not hold the job."""
        if not self.running:
            return
        execution = self.source.choice(self.running)
        body = {"workerId": "thief", "retryable": False, "variables": {"n": 8}}
        status, found = await self.call("POST", f"/v1/jobs/{execution}/complete", body)
        game = self.game
        assert game is not None
        job = kind(game.steps[game.open_tokens[self.running.index(execution)].step]) == "SERVICE_TASK"
        assert (status, found["error"]) == ((409, "lease-lost") if job else (404, "not-found")), found
        status, found = await self.call("POST", f"/v1/jobs/{execution}/fail", body)
        assert status == (204 if job else 404)

    async def misuse(self) -> None:
        """Of operations that the instance's state does not allow."""
        game = self.game
        assert game is not None
        open_steps = {mark.step for mark in game.open_tokens}
        ended = game.status in ENDED
        path = f"/v1/instances/{self.instance}"
        name = self.source.choice([name for name in game.steps if "/" not in name])  # hidden ones are in no path
        if any(mark.signal and mark.step == name for mark in game.open_tokens):
            return  # a signal to the step is what its worker waits for
        kinds = {"USER_TASK": f"{path}/user-tasks/{name}/complete", "WAIT": f"{path}/signals/{name}"}
        refusals: list[tuple[str, set[tuple[int, str]]]] = []
        for wanted, call in kinds.items():
            if kind(game.steps[name]) != wanted:
                refusals.append((call, {(400, "bad-request"), (409, "conflict")} if ended else {(400, "bad-request")}))
            elif name not in open_steps:
                closed = (409, "conflict") if ended or wanted == "WAIT" else (404, "not-found")
                refusals.append((call, {closed}))
        if ended:
            refusals.append((f"{path}/cancel", {(409, "conflict")}))
        if game.status != "FAILED":
            refusals.append((f"{path}/retry", {(409, "conflict")}))
        for call, expected in refusals:
            status, found = await self.call("POST", call, {"n": 9})
            assert (status, found["error"]) in expected, (call, found)

    async def give_back(self) -> None:
        """Jobs unused: those that are held go back, the others are not touched."""
        jobs = [{"jobId": job["id"], "attempt": job["attempt"]} for job in self.polled.values()]
        self.source.shuffle(jobs)
        status, found = await self.call("POST", "/v1/jobs/release", {"workerId": self.worker, "jobs": jobs[:3]})
        assert status == 200
        assert {item["outcome"] for item in found["results"]} <= {"ok", "lease-lost"}

    async def come_back(self) -> None:
        """A worker that took all jobs and lost them; one attempt more, and no retry less."""
        await self.fairness_order.lift()
        body = {"workerId": self.worker, "jobTypes": self.types or ["none"], "maxJobs": 100, "leaseSeconds": 5}
        _, before = await self.call("POST", "/v1/jobs/poll", body)
        self.clock.advance(6)
        await self.expire()
        _, after = await self.call("POST", "/v1/jobs/poll", body)
        again = {job["id"]: job for job in after["jobs"]}
        for job in before["jobs"]:
            now = again[job["id"]]
            assert (now["attempt"], now["retriesRemaining"]) == (job["attempt"] + 1, job["retriesRemaining"])
        self.polled |= again

    # -- looking

    async def compare(self) -> None:
        game = self.game
        assert game is not None
        path = f"/v1/instances/{self.instance}"
        view, items = await self.get(path), (await self.get(f"{path}/history"))["items"]
        status = "WAITING" if game.status == "ACTIVE" and game.waiting else game.status
        assert view["status"] == status
        assert ("completedAt" in view) == (status in ENDED)
        assert ("failureReason" in view) == (status in ("FAILED", "CANCELLED"))
        if game.failure not in (None, "expression"):
            assert game.failure in view["failureReason"]
        assert view.get("failureCode") == game.failure_code
        assert ("result" in view) == (game.result is not None)
        assert without_times(view.get("result", {})) == without_times(game.result or {})
        assert view["currentStepIds"] == list(dict.fromkeys(mark.step for mark in game.open_tokens))
        assert without_times(view["variables"]) == without_times(game.variables)
        self.compare_history(game, items, view)
        self.compare_audit(game, items, (await self.get(f"{path}/audit"))["items"], view)
        kept = Counter(signal["stepId"] for signal in (await self.get(f"{path}/signals"))["items"])
        assert kept == (game.kept_signals if game.status in ("ACTIVE", "FAILED") else Counter())
        if self.source.random() < 0.7:
            return
        by = {} if self.source.random() < 0.5 else {"instanceKey": self.key}
        if self.source.random() < 0.5:
            by["limit"] = "5"
        listed = await self.get("/v1/instances", definitionId=self.body["id"], status=status, **by)
        if "limit" in by:
            listed["total"] = len(listed["items"])
            assert listed.get("next") is None
        assert (listed["total"], [item["id"] for item in listed["items"]]) == (1, [self.instance])

    def compare_history(self, game: ReferenceModel, items: list[dict[str, Any]], view: dict[str, Any]) -> None:
        closed = Counter((item["stepId"], item["status"]) for item in items if item["status"] != "RUNNING")
        names = {"INTERRUPTED": "FAILED", "CAUGHT": "FAILED", "COMPENSATED": "COMPLETED"}
        assert closed == sum((Counter({(s, names.get(h, h)): n}) for (s, h), n in game.closed.items()), Counter())
        running = [item for item in items if item["status"] == "RUNNING"]
        assert [(one["stepId"], one.get("item")) for one in running] == [
            (mark.step, mark.item) for mark in game.running
        ]
        self.running = [item["id"] for item in running if "items" not in item]
        self.completed = {item["id"] for item in items if item["status"] == "COMPLETED"}
        assert [item["id"] for item in items] == sorted((item["id"] for item in items), key=seq_of)
        interrupted = Counter(item["stepId"] for item in items if item.get("failureReason") == INTERRUPTED)
        assert interrupted == Counter({step: n for (step, how), n in game.closed.items() if how == "INTERRUPTED"})
        entered: Counter[str] = Counter()
        for item in items:
            entered[item["stepId"]] += "item" not in item
            assert item["attemptNumber"] == entered[item["stepId"]]
            assert item["stepType"] == self.known[item["stepId"]]
            assert item["instanceId"] == self.instance
            assert (item["status"] == "RUNNING") == ("endedAt" not in item)
            assert view["startedAt"] <= item["startedAt"] <= item.get("endedAt", item["startedAt"])
            self.compare_attempts(item)

    def compare_attempts(self, item: dict[str, Any]) -> None:
        attempts = item.get("attempts", [])
        assert not attempts or item["stepType"] == "SERVICE_TASK"
        numbers = [attempt["attempt"] for attempt in attempts]
        assert numbers == sorted(set(numbers))
        assert all(attempt["status"] != "RUNNING" for attempt in attempts[:-1])
        if item["status"] == "COMPLETED" and item["stepType"] == "SERVICE_TASK" and "items" not in item:
            assert (attempts[-1]["status"], attempts[-1]["worker"]) == ("COMPLETED", self.worker)
        if attempts and attempts[-1]["status"] == "RUNNING":
            assert item["status"] == "RUNNING"

    def compare_audit(
        self, game: ReferenceModel, items: list[dict[str, Any]], records: list[dict[str, Any]], view: dict[str, Any]
    ) -> None:
        """What must be there, each exactly as often."""
        assert records[0]["kind"] == "STARTED"
        times = [record["at"] for record in records]
        assert times == sorted(times)
        order = [record["kind"] for record in records]
        kinds = Counter(order)
        steps = Counter((record["stepId"], record["kind"]) for record in records if record["kind"].startswith("STEP_"))
        assert steps == Counter({(step, f"STEP_{how}"): n for (step, how), n in game.closed.items()})
        made = Counter(move.what for move in self.moves)
        assert kinds["CANCELLED"] == made["cancel"] + made["undo"]
        assert kinds["RETRIED"] == made["retry"] + self.retried_from
        assert kinds["MIGRATED"] == self.migrated
        assert kinds["VARIABLES_EDITED"] == made["edit"]
        assert kinds["TIMER_FIRED"] == game.timers_fired
        ends = [record["kind"] for record in records if record["kind"].startswith("INSTANCE_")]
        assert ends == ([f"INSTANCE_{view['status']}"] if view["status"] in ENDED else [])
        after = [kind for kind in order if kind not in ("VARIABLES_EDITED", "MIGRATED")]
        assert not ends or after[-1] == ends[0]
        retried = Counter(record["stepExecutionId"] for record in records if record["kind"] == "JOB_RETRIED")
        failed = Counter(
            {
                item["id"]: sum(reported_as_failed(attempt, "reason") for attempt in item.get("attempts", ()))
                - (bool(item.get("attempts")) and reported_as_failed(item, "failureReason"))
                for item in items
            }
        )
        assert retried == +failed
        dispatched = [record["stepExecutionId"] for record in records if record["kind"] == "JOB_DISPATCHED"]
        assert all(self.polled.get(execution) for execution, _ in groupby(sorted(dispatched)))


def reported_as_failed(reported: dict[str, Any], reason: str) -> bool:
    """By its worker: the interruption by a timer is told as a failure too."""
    return bool(reported["status"] == "FAILED" and reported.get(reason) != INTERRUPTED)


def is_long(seed: int) -> bool:
    """Whether the game of this seed goes on for a while: nothing is known of it before but its definition."""
    body = random_definition(random.Random(seed), failing=seed % 4 == 0, max_steps=20)
    steps: Any = body["steps"]
    return sum(kind(step) in TASKS for step in steps) >= TASKS_MIN


@pytest.fixture
async def engines(make_driver: MakeDriver, nursery: trio.Nursery) -> AsyncGenerator[list[tuple[Driver, str]]]:
    """Two engines on one database, each behind an HTTP server of its own: (driver, address)."""
    found: list[tuple[Driver, str]] = []
    servers: list[HttpServer] = []
    for _ in range(2):
        limits = {"max_automatic_steps": MAX_AUTOMATIC, "advance_max_work_steps": MAX_WORK}
        driver = make_driver(lease_min_seconds=5, **limits)
        sockets = listen("127.0.0.1", 0)
        server = HttpServer()
        found.append((driver, f"http://127.0.0.1:{sockets[0].getsockname()[1]}"))
        await nursery.start(server.serve, make_app(driver.engine), sockets)
        servers.append(server)
    yield found
    for server in servers:
        server.drain()


@in_shares
async def test_the_engine_plays_by_the_rules_over_rest(engines: list[tuple[Driver, str]], share: int) -> None:
    drivers = [driver for driver, _ in engines]
    clock = drivers[0].clock
    left = list(islice((seed for seed in count(FIRST) if is_long(seed)), GAMES // share))
    moves: Counter[str] = Counter()
    calls: Counter[str] = Counter()

    async def player(https: list[httpx.AsyncClient]) -> None:
        while left:
            played = PlayedOverRest(drivers, https, clock, left.pop())
            try:
                await played.play()
            except Exception as error:
                error.add_note(f"seed {played.seed}: {played.moves}\n{msgspec.json.encode(played.body).decode()}")
                raise
            moves.update(move.what for move in played.moves)
            calls.update(played.calls)

    async with (
        httpx.AsyncClient(base_url=engines[0][1], timeout=60) as one,
        httpx.AsyncClient(base_url=engines[1][1], timeout=60) as two,
        trio.open_nursery() as nursery,
    ):
        for _ in range(GAMES_AT_ONCE):
            nursery.start_soon(player, [one, two])
    if GAMES // share >= GAMES_DEFAULT:  # enough of everything, else it would prove nothing
        assert set(moves) == MOVES
        assert moves.total() > 3.5 * GAMES
        assert set(calls) == {
        "POST definitions", "POST instances", "GET instances", "POST jobs", "POST messages", "GET messages",
    }  # fmt: skip
