"""What only REST has, and the additions: over real sockets, on a real database."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import trio

from penstock.testing.definitions import definition, end, fork, linear, service, step
from tests.rest.drivers import JobView, RestDriver
from tests.runtime.engine_process import EngineProcess
from tests.waiting import wait_until

WAIT_S = 90.0


@pytest.fixture
def driver(rest_driver: RestDriver) -> RestDriver:
    """Only REST has what is tested here."""
    return rest_driver


async def one(driver: RestDriver, *job_types: str, worker: str = "w", lease_s: int = 30) -> JobView:
    jobs = await driver.poll(*job_types, worker=worker, lease_s=lease_s, wait_s=WAIT_S)
    assert len(jobs) == 1
    return jobs[0]


def refusal(answer: httpx.Response) -> tuple[int, str]:
    found = answer.json()
    assert found["reason"] == found["message"]
    return answer.status_code, found["error"]


class Raw:
    """One connection with nothing between the test and the bytes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._read = b""

    async def send(self, method: str, path: str, body: bytes = b"", *headers: str) -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        await self.stream.send_all("\r\n".join([*lines, "", ""]).encode() + body)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = await self._until(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        size = int(headers.get("content-length", "0"))
        while len(self._read) < size:
            self._read += await self.stream.receive_some()
        body, self._read = self._read[:size], self._read[size:]
        return int(status.split()[1]), headers, body

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._read:
            data = await self.stream.receive_some()
            assert data, self._read
            self._read += data
        head, _, self._read = self._read.partition(mark)
        return head


@pytest.fixture
async def raw(engine_process: EngineProcess, nursery: trio.Nursery) -> Any:
    async with await trio.open_tcp_stream("127.0.0.1", engine_process.port) as stream:
        with trio.fail_after(WAIT_S):
            yield Raw(stream)


# -- bytes on the wire


async def test_whole_numbers_stay_exact(driver: RestDriver, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name))
    huge = 10**999 + 7
    given = {
        "id": 2**53 + 1,
        "huge": huge,
        "negative": -(2**63) - 1,
        "decimal": 0.1,
        "whole": 3,
        "text": "\U0001f600é\\u0000",
    }
    assert (await driver.start(name, given)).variables == given
    job = await one(driver, name)
    assert job.variables == given
    await driver.complete(job.id, {"next": huge + 1})
    assert (await driver.instance(job.instance_id)).variables == {**given, "next": huge + 1}


async def test_a_204_has_no_body_and_keeps_the_connection(driver: RestDriver, raw: Raw, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name))
    await driver.start(name)
    job = await one(driver, name)
    await raw.send("POST", f"/v1/jobs/{job.id}/complete", b'{"workerId":"w"}')
    status, headers, _ = await raw.answer()
    assert status == 204
    assert not {"content-length", "transfer-encoding", "content-type"} & set(headers)
    await raw.send("GET", f"/v1/instances/{job.instance_id}")
    status, _, body = await raw.answer()
    assert (status, json.loads(body)["status"]) == (200, "COMPLETED")


async def test_chunked_bodies_and_offers_of_http_2_lose_nothing(driver: RestDriver, raw: Raw, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name))
    body = json.dumps({"definitionId": name, "variables": {"kept": [1, 2]}}).encode()
    half = len(body) // 2
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:], b""))
    offer = ("Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__", "Connection: Upgrade, HTTP2-Settings")
    await raw.send("POST", "/v1/instances", b"", "Transfer-Encoding: chunked", *offer)
    await raw.stream.send_all(chunked)
    status, _, answer = await raw.answer()
    assert (status, json.loads(answer)["variables"]) == (201, {"kept": [1, 2]})
    await raw.send("POST", "/v1/instances", body, *offer)
    assert (await raw.answer())[0] == 201


async def test_a_client_that_closes_its_sending_side_gets_its_answer(driver: RestDriver, raw: Raw, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name))
    await raw.send("GET", f"/v1/definitions/{name}")
    await raw.stream.send_eof()
    status, _, body = await raw.answer()
    assert (status, json.loads(body)["id"]) == (200, name)


async def test_jobs_of_a_client_that_left_go_to_another(
    driver: RestDriver, engine_process: EngineProcess, name: str
) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name))
    body = json.dumps({"workerId": "gone", "jobTypes": [name], "waitSeconds": 60}).encode()

    async def parked() -> int:
        return int(await trio.to_thread.run_sync(engine_process.metric, "penstock_parked_polls"))

    before = await parked()
    streams = [await trio.open_tcp_stream("127.0.0.1", engine_process.port) for _ in range(3)]
    for stream in streams:
        await Raw(stream).send("POST", "/v1/jobs/poll", body)

    async def all_parked() -> bool:
        return await parked() == before + 3

    async def none_parked() -> bool:
        return await parked() == before

    await wait_until(all_parked)
    for stream in streams:
        await stream.aclose()
    await wait_until(none_parked)
    started = await driver.start(name)
    (job,) = await driver.poll(name, worker="here", wait_s=WAIT_S)
    assert (job.instance_id, job.attempt) == (started.id, 1)


async def test_a_browser_may_read_why_the_server_refused(driver: RestDriver, raw: Raw) -> None:
    await raw.send("POST", "/v1/instances", b"", "Content-Length: 99999999", "Origin: https://a.example")
    status, headers, body = await raw.answer()
    assert (status, json.loads(body)["error"]) == (413, "payload-too-large")
    assert headers["access-control-allow-origin"] == "*"


# -- additions on jobs


async def test_batches_complete_and_fail_and_release_many_at_once(driver: RestDriver, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name, retry_count=1))
    items = [{"definitionId": name, "variables": {"n": n}} for n in range(5)] + [{"definitionId": "unknown"}]
    started = (await driver.call("POST", "/v1/instances/batch", {"items": items}))["results"]
    assert [("instance" in result) for result in started] == [True] * 5 + [False]
    assert started[5]["error"] == "not-found"
    jobs = await driver.poll(name, max_jobs=10)
    assert [job.variables["n"] for job in jobs] == [0, 1, 2, 3, 4]

    results: list[dict[str, Any]] = [
        {"jobId": jobs[0].id, "attempt": 1, "variables": {"ok": True}},
        {"jobId": jobs[1].id, "attempt": 7},
        {"jobId": "1f-1-0"},
        {"jobId": jobs[2].id, "variables": [1]},
    ]
    body = {"workerId": "w", "results": results}
    answers = (await driver.call("POST", "/v1/jobs/complete", body))["results"]
    assert [item["outcome"] for item in answers] == ["ok", "lease-lost", "not-found", "invalid"]
    again = (await driver.call("POST", "/v1/jobs/complete", {"workerId": "w", "results": results[:1]}))["results"]
    assert again == [{"jobId": jobs[0].id, "outcome": "already-completed"}]

    await driver.cancel(jobs[1].instance_id)
    results = [
        {"jobId": jobs[1].id, "retryable": True, "errorMessage": "x"},
        {"jobId": jobs[2].id, "retryable": True, "errorMessage": "again \ud800"},
        {"jobId": jobs[3].id, "retryable": False, "errorMessage": "never"},
    ]
    answers = (await driver.call("POST", "/v1/jobs/fail", {"workerId": "w", "results": results}))["results"]
    assert [item["outcome"] for item in answers] == ["cancelled", "ok", "ok"]

    body = {"workerId": "w", "jobs": [{"jobId": jobs[4].id, "attempt": 1}, {"jobId": jobs[0].id}]}
    answers = (await driver.call("POST", "/v1/jobs/release", body))["results"]
    assert [item["outcome"] for item in answers] == ["ok", "lease-lost"]
    back = {job.id: job for job in await driver.poll(name, max_jobs=10, worker="next")}
    assert set(back) == {jobs[2].id, jobs[4].id}
    assert (back[jobs[2].id].retries_remaining, back[jobs[4].id].retries_remaining) == (0, 1)

    body = {"workerId": "next", "jobs": [{"jobId": jobs[2].id, "leaseSeconds": 60}, {"jobId": jobs[3].id}]}
    answers = (await driver.call("POST", "/v1/jobs/heartbeat", body))["results"]
    assert [item["outcome"] for item in answers] == ["ok", "cancelled"]
    assert answers[0]["lockExpiresAt"].endswith("Z")


@pytest.mark.parametrize("wish", [10**400, -(10**400), 1e308, 10**4000])
async def test_a_pause_of_any_length_may_be_asked_for(driver: RestDriver, name: str, wish: float) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name, retry_count=2))
    for path in ("/v1/jobs/{}/fail", "/v1/jobs/fail"):
        started = await driver.start(name)
        (job,) = await driver.poll(name)
        item = {"jobId": job.id, "retryable": True, "retryAfterSeconds": wish}
        body = {"workerId": "w", **item} if "{}" in path else {"workerId": "w", "results": [item]}
        answer = await driver.call("POST", path.format(job.id), body)
        assert answer is None or answer["results"] == [{"jobId": job.id, "outcome": "ok"}]
        assert (await driver.instance(started.id)).status == "ACTIVE"
        await driver.cancel(started.id)


async def test_a_heartbeat_keeps_the_lease_and_what_it_brings(driver: RestDriver, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name, retry_count=1))
    await driver.start(name)
    job = await one(driver, name, lease_s=1)
    path = f"/v1/jobs/{job.id}/heartbeat"
    checkpoint = {"page": 12345678901234567890123, "seen": [1, 2]}
    body = {"workerId": "w", "attempt": 1, "leaseSeconds": 60, "checkpoint": checkpoint, "progress": {"done": 0.5}}
    assert (await driver.call("POST", path, body))["lockExpiresAt"].endswith("Z")
    shown = await driver.call("GET", f"/v1/instances/{job.instance_id}")
    assert shown["progress"] == {"task-1": {"done": 0.5}}
    other = await driver.http.post(path, json={"workerId": "w", "attempt": 2})
    assert refusal(other) == (409, "lease-lost")
    assert refusal(await driver.http.post(path, json={"workerId": "thief"})) == (409, "lease-lost")
    await driver.fail(job.id)
    answer = await driver.call("POST", "/v1/jobs/poll", {"workerId": "w", "jobTypes": [name], "waitSeconds": WAIT_S})
    assert (answer["jobs"][0]["attempt"], answer["jobs"][0]["checkpoint"]) == (2, checkpoint)
    await driver.cancel(job.instance_id)
    assert refusal(await driver.http.post(path, json={"workerId": "w"})) == (409, "cancelled")


async def test_an_attempt_fences_exactly(driver: RestDriver, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name, retry_count=1))
    started = await driver.start(name)
    job = await one(driver, name)
    for action in ("complete", "fail"):
        for attempt in (0, 2, 10**12, -5):
            body = {"workerId": "w", "attempt": attempt, "retryable": False}
            answer = await driver.http.post(f"/v1/jobs/{job.id}/{action}", json=body)
            assert refusal(answer) == (409, "lease-lost")
    assert (await driver.instance(started.id)).status == "ACTIVE"
    await driver.call("POST", f"/v1/jobs/{job.id}/complete", {"workerId": "w", "attempt": 1})
    await driver.call("POST", f"/v1/jobs/{job.id}/complete", {"workerId": "w", "attempt": 1})
    late = await driver.http.post(f"/v1/jobs/{job.id}/fail", json={"workerId": "w", "attempt": 2, "retryable": True})
    assert refusal(late) == (409, "lease-lost")
    assert (await driver.instance(started.id)).status == "COMPLETED"


async def test_a_failed_instance_is_listed_and_goes_on_after_retry(driver: RestDriver, name: str) -> None:
    await driver.upload(fork(1, 1, definition_id=name, job_type=name))
    started = await driver.start(name)
    jobs = await driver.poll(name, max_jobs=2)
    await driver.fail(jobs[0].id, "broken", retryable=False)
    dead = (await driver.call("GET", "/v1/jobs", params={"status": "FAILED", "pageSize": 200}))["items"]
    (found,) = [item for item in dead if item["instanceId"] == started.id]
    assert (found["id"], found["jobType"], found["stepId"]) == (jobs[0].id, name, jobs[0].step_id)
    assert "broken" in found["reason"]
    again = await driver.call("POST", f"/v1/instances/{started.id}/retry")
    assert (again["status"], sorted(again["currentStepIds"])) == ("ACTIVE", ["branch-1-task-1", "branch-2-task-1"])
    assert refusal(await driver.http.post(f"/v1/instances/{started.id}/retry")) == (409, "conflict")
    for job in [await one(driver, name), await one(driver, name)]:
        await driver.complete(job.id)
    assert (await driver.instance(started.id)).status == "COMPLETED"


# -- idempotency and keys


async def test_the_same_key_gives_the_first_answer_again(driver: RestDriver, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name))
    body = {"definitionId": name, "variables": {"a": 1, "b": 2}}
    headers = [(b"Idempotency-Key", f"{name}-é".encode())]
    answers: list[httpx.Response] = []

    async def start() -> None:
        answers.append(await driver.http.post("/v1/instances", json=body, headers=headers))

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(start)
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert (await driver.list_instances(definition_id=name))[1] == 1
    other = await driver.http.post("/v1/instances", json={**body, "variables": {"a": 2}}, headers=headers)
    assert refusal(other) == (409, "idempotency-conflict")
    items = [{**body, "idempotencyKey": f"{name}-batch"}] * 2
    results = (await driver.call("POST", "/v1/instances/batch", {"items": items}))["results"]
    assert len({result["instance"]["id"] for result in results}) == 1


async def test_an_instance_key_is_unique_among_the_open(driver: RestDriver, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name))
    body = {"definitionId": name, "instanceKey": "order-7"}
    ids = [(await driver.call("POST", "/v1/instances", body))["id"] for _ in range(3)]
    assert len(set(ids)) == 1
    await driver.cancel(ids[0])
    assert (await driver.call("POST", "/v1/instances", body))["id"] != ids[0]


async def test_a_signal_is_kept_until_its_wait_opens(driver: RestDriver, name: str) -> None:
    await driver.upload(
        definition(
            service("work", "paid", job_type=name), step("paid", "WAIT", nextStep="end"), end(), definition_id=name
        )
    )
    started = await driver.start(name)
    path = f"/v1/instances/{started.id}/signals"
    headers = {"Idempotency-Key": "k"}
    for _ in range(2):
        await driver.call("POST", f"{path}/paid?buffer=true", {"amount": 5}, headers=headers)
    (kept,) = (await driver.call("GET", path))["items"]
    assert (kept["stepId"], kept["variables"]) == ("paid", {"amount": 5})
    other = await driver.http.post(f"{path}/paid?buffer=true", json={"amount": 6}, headers=headers)
    assert refusal(other) == (409, "idempotency-conflict")
    await driver.complete((await one(driver, name)).id)
    done = await driver.instance(started.id)
    assert (done.status, done.variables) == ("COMPLETED", {"amount": 5})
    assert (await driver.call("GET", path))["items"] == []


# -- what is told


async def test_history_shows_attempts_and_audit_shows_everything(driver: RestDriver, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name, retry_count=1))
    started = await driver.start(name)
    await driver.fail((await one(driver, name, worker="first")).id, "first try", worker="first")
    await driver.complete((await one(driver, name, worker="second")).id, worker="second")
    task, _ = (await driver.call("GET", f"/v1/instances/{started.id}/history"))["items"]
    assert [(item["attempt"], item["worker"], item["status"], item.get("reason")) for item in task["attempts"]] == [
        (1, "first", "FAILED", "first try"),
        (2, "second", "COMPLETED", None),
    ]
    records = (await driver.call("GET", f"/v1/instances/{started.id}/audit"))["items"]
    assert [record["at"] for record in records] == sorted(record["at"] for record in records)
    assert records[0]["kind"] == "STARTED"
    assert {record.get("actor") for record in records} >= {"first", "second"}
    assert len((await driver.call("GET", f"/v1/instances/{started.id}/audit?limit=2"))["items"]) == 2


async def test_the_engine_says_that_it_is_ready_and_counts(driver: RestDriver, engine_process: EngineProcess) -> None:
    assert (await driver.http.get("/healthz")).content == b""
    assert (await driver.call("GET", "/readyz"))["status"] == "ready"
    metric = await trio.to_thread.run_sync(engine_process.metric, "http_requests_duration_seconds_count")
    assert metric >= 2
