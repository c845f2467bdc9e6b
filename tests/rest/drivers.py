"""What a scenario does with an engine, whatever carries it: one driver per transport, the same scenarios over all.

A driver raises `Refused` with the code of the REST contract. Over gRPC statuses map to these codes: NOT_FOUND is
not-found, INVALID_ARGUMENT bad-request, FAILED_PRECONDITION conflict, ABORTED lease-lost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import httpx

Json = dict[str, Any]


class Refused(Exception):
    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


@dataclass(frozen=True)
class Instance:
    id: str
    definition_id: str
    version: int
    status: str
    steps: list[str]
    variables: Json
    failure: str | None
    business_key: str | None
    ended: bool


@dataclass(frozen=True)
class Execution:
    id: str
    step_id: str
    step_type: str
    status: str
    attempt_number: int
    failure: str | None
    ended: bool


@dataclass(frozen=True)
class JobView:
    id: str
    job_type: str
    instance_id: str
    step_id: str
    step_execution_id: str
    retries_remaining: int
    variables: Json
    attempt: int
    idempotency_key: str


class Driver(Protocol):
    """Calls as existing clients make them: no `attempt`, no additions, but for ``wait_s``: a transport whose poll does
    not wait asks again until it is over. ``keeps_order``: of conditions and transformations; a proto map has none."""

    keeps_order: bool

    async def upload(self, definition: Json) -> int: ...

    async def read_definition(self, id: str, version: int = 0) -> Json: ...

    async def list_definitions(self, keyword: str) -> list[tuple[str, int]]: ...

    async def start(
        self, definition_id: str, variables: Json | None = None, *, version: int = 0, business_key: str | None = None
    ) -> Instance: ...

    async def instance(self, id: str) -> Instance: ...

    async def list_instances(
        self,
        *,
        definition_id: str | None = None,
        status: str | None = None,
        business_key: str | None = None,
        page: int = 0,
        page_size: int = 0,
    ) -> tuple[list[Instance], int]: ...

    async def slice_instances(
        self, definition_id: str, *, cursor: str | None = None, limit: int = 0
    ) -> tuple[list[Instance], str | None]: ...

    async def history(self, id: str) -> list[Execution]: ...

    async def cancel(self, id: str, reason: str | None = None) -> Instance: ...

    async def poll(
        self, *job_types: str, worker: str = "w", max_jobs: int = 1, lease_s: int = 30, wait_s: float = 0
    ) -> list[JobView]: ...

    async def complete(self, job_id: str, variables: Json | None = None, *, worker: str = "w") -> None: ...

    async def fail(self, job_id: str, error: str = "boom", *, retryable: bool = True, worker: str = "w") -> None: ...

    async def complete_user_task(self, instance_id: str, step_id: str, result: Json | None = None) -> None: ...

    async def signal(self, instance_id: str, step_id: str, variables: Json | None = None) -> None: ...


class RestDriver:
    """Over REST, with an HTTP client that knows nothing of Penstock."""

    keeps_order = True

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def call(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        """The decoded answer, None for 204. Raises Refused."""
        content = None if body is None else json.dumps(body)  # escapes what UTF-8 does not have
        answer = await self.http.request(method, path, content=content, **options)
        if answer.is_success:
            assert (answer.status_code == 204) == (not answer.content)
            return answer.json() if answer.content else None
        found = answer.json()
        assert answer.headers["content-type"] == "application/json"
        raise Refused(found["error"], found["reason"])

    async def upload(self, definition: Json) -> int:
        return int((await self.call("POST", "/v1/definitions", definition))["version"])

    async def read_definition(self, id: str, version: int = 0) -> Json:
        suffix = f"/versions/{version}" if version else ""
        return dict(await self.call("GET", f"/v1/definitions/{quote(id, safe='')}{suffix}"))

    async def list_definitions(self, keyword: str) -> list[tuple[str, int]]:
        page = await self.call("GET", "/v1/definitions", params={"keyword": keyword, "pageSize": 200})
        return [(item["id"], item["version"]) for item in page["items"]]

    async def start(
        self, definition_id: str, variables: Json | None = None, *, version: int = 0, business_key: str | None = None
    ) -> Instance:
        body = {
            "definitionId": definition_id,
            "variables": variables,
            "definitionVersion": version,
            "businessKey": business_key,
        }
        return _instance(await self.call("POST", "/v1/instances", body))

    async def instance(self, id: str) -> Instance:
        return _instance(await self.call("GET", f"/v1/instances/{id}"))

    async def list_instances(
        self,
        *,
        definition_id: str | None = None,
        status: str | None = None,
        business_key: str | None = None,
        page: int = 0,
        page_size: int = 0,
    ) -> tuple[list[Instance], int]:
        query = {
            "definitionId": definition_id,
            "status": status,
            "businessKey": business_key,
            "page": page,
            "pageSize": page_size,
        }
        params = {name: value for name, value in query.items() if value is not None}
        found = await self.call("GET", "/v1/instances", params=params)
        return [_instance(item) for item in found["items"]], found["total"]

    async def slice_instances(
        self, definition_id: str, *, cursor: str | None = None, limit: int = 0
    ) -> tuple[list[Instance], str | None]:
        params = {"definitionId": definition_id} | ({} if cursor is None else {"cursor": cursor})
        found = await self.call("GET", "/v1/instances", params=params | ({"limit": str(limit)} if limit else {}))
        assert found.keys() <= {"items", "next"}
        return [_instance(item) for item in found["items"]], found.get("next")

    async def history(self, id: str) -> list[Execution]:
        items = (await self.call("GET", f"/v1/instances/{id}/history"))["items"]
        return [
            Execution(
                id=item["id"],
                step_id=item["stepId"],
                step_type=item["stepType"],
                status=item["status"],
                attempt_number=item["attemptNumber"],
                failure=item.get("failureReason"),
                ended="endedAt" in item,
            )
            for item in items
        ]

    async def cancel(self, id: str, reason: str | None = None) -> Instance:
        return _instance(await self.call("POST", f"/v1/instances/{id}/cancel", {"reason": reason}))

    async def poll(
        self, *job_types: str, worker: str = "w", max_jobs: int = 1, lease_s: int = 30, wait_s: float = 0
    ) -> list[JobView]:
        body = {
            "workerId": worker,
            "jobTypes": job_types,
            "maxJobs": max_jobs,
            "leaseSeconds": lease_s,
            "waitSeconds": wait_s,
        }
        return [
            JobView(
                id=item["id"],
                job_type=item["jobType"],
                instance_id=item["instanceId"],
                step_id=item["stepId"],
                step_execution_id=item["stepExecutionId"],
                retries_remaining=item["retriesRemaining"],
                variables=item["variables"],
                attempt=item["attempt"],
                idempotency_key=item["idempotencyKey"],
            )
            for item in (await self.call("POST", "/v1/jobs/poll", body))["jobs"]
        ]

    async def complete(self, job_id: str, variables: Json | None = None, *, worker: str = "w") -> None:
        await self.call("POST", f"/v1/jobs/{job_id}/complete", {"workerId": worker, "variables": variables})

    async def fail(self, job_id: str, error: str = "boom", *, retryable: bool = True, worker: str = "w") -> None:
        body = {"workerId": worker, "retryable": retryable, "errorMessage": error}
        await self.call("POST", f"/v1/jobs/{job_id}/fail", body)

    async def complete_user_task(self, instance_id: str, step_id: str, result: Json | None = None) -> None:
        path = f"/v1/instances/{instance_id}/user-tasks/{quote(step_id, safe='')}/complete"
        await self.call("POST", path, {"result": result})

    async def signal(self, instance_id: str, step_id: str, variables: Json | None = None) -> None:
        await self.call("POST", f"/v1/instances/{instance_id}/signals/{quote(step_id, safe='')}", variables)


def _instance(found: Json) -> Instance:
    return Instance(
        id=found["id"],
        definition_id=found["definitionId"],
        version=found["definitionVersion"],
        status=found["status"],
        steps=found["currentStepIds"],
        variables=found["variables"],
        failure=found.get("failureReason"),
        business_key=found.get("businessKey"),
        ended="completedAt" in found,
    )
