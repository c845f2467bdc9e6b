"""Workers and a starter in threads, against any number of engines; they go on when an engine dies."""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Callable
from typing import Any

from tests.runtime.background import Threads

Ports = Callable[[], list[int]]


class Load(Threads):
    """``workers`` threads poll and complete jobs of type ``work``, one starts ``target`` instances."""

    def __init__(self, ports: Ports, *, workers: int, target: int, lease_s: int = 5) -> None:
        super().__init__()
        self._ports = ports
        self._target = target
        self._lease_s = lease_s
        self.started: set[str] = set()
        self.completed: set[str] = set()
        self._turn = itertools.count()
        self.add(self._start_instances)
        for number in range(workers):
            self.add(self._work, f"worker-{number}")

    def _call(self, path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        ports = self._ports()
        if not ports:
            self.stop.wait(0.02)
            return None
        connection = http.client.HTTPConnection("127.0.0.1", ports[next(self._turn) % len(ports)], timeout=30)
        try:
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException):
            self.stop.wait(0.02)
            return None
        finally:
            connection.close()
        return response.status, json.loads(text) if text else None

    def _start_instances(self) -> None:
        number = 0
        while len(self.started) < self._target and not self.stop.is_set():
            # the key makes a repeated start, whose first answer was lost, the same instance
            answer = self._call(
                "/v1/instances/batch",
                {"items": [{"definitionId": "linear", "idempotencyKey": f"key-{number + i}"} for i in range(10)]},
            )
            if answer is not None and answer[0] == 200 and all("instance" in item for item in answer[1]["results"]):
                self.started |= {item["instance"]["id"] for item in answer[1]["results"]}
                number += 10

    def _work(self, worker: str) -> None:
        while not self.stop.is_set():
            poll: dict[str, Any] = {"workerId": worker, "jobTypes": ["work"], "maxJobs": 5, "waitSeconds": 1}
            poll["leaseSeconds"] = self._lease_s
            answer = self._call("/v1/jobs/poll", poll)
            if answer is None or answer[0] != 200:
                continue
            for job in answer[1]["jobs"]:
                self._complete(worker, job)

    def _complete(self, worker: str, job: dict[str, Any]) -> None:
        body = {"workerId": worker, "attempt": job["attempt"], "variables": {job["stepId"]: worker}}
        for _ in range(100):
            answer = self._call(f"/v1/jobs/{job['id']}/complete", body)
            if answer is not None and answer[0] != 503:
                if answer[0] == 204:
                    self.completed.add(job["id"])
                return
