"""What can't work is refused where it is written, and a call that fails says where and why, in few lines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from penstock.client import Client, SyncClient
from penstock.worker import JobContext, Worker
from tests.house.sources import SRC
from tests.shares import mostly_slow

LINES_MAX = 60


@pytest.mark.parametrize("url", ["localhost:8080", "127.0.0.1", "http:8080", "http://", "ftp://host", ""])
@pytest.mark.parametrize("make", [Worker, Client, SyncClient])
def test_a_url_without_scheme_or_host_is_refused_when_given(make: Callable[[str], Any], url: str) -> None:
    with pytest.raises(ValueError, match=r"not an http://, https://, grpc:// or grpcs:// URL"):
        make(url)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1, not 0"),
        ({"concurrency": 2.5}, "concurrency must be a whole number, not 2.5"),
        ({"lease_s": 7.5}, "lease_s must be a whole number, not 7.5"),
        ({"max_threads": 0}, "max_threads must be at least 1, not 0"),
        ({"max_processes": -1}, "max_processes must be at least 1, not -1"),
        ({"max_unreported": 0}, "max_unreported must be at least 1, not 0"),
        ({"lease_s": 0}, "lease_s must be at least 1, not 0"),
        ({"wait_s": -1}, "wait_s must be at least 0, not -1"),
        ({"drain_grace_s": -0.5}, "drain_grace_s must be at least 0, not -0.5"),
        ({"drain_grace_s": float("nan")}, "drain_grace_s must be at least 0, not nan"),
    ],
)
def test_a_worker_that_could_not_work_is_refused_at_construction(limits: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Worker("http://127.0.0.1:8080", **limits)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"concurrency": 0}, "the handler for 't': concurrency must be at least 1, not 0"),
        ({"timeout_s": 0}, "the handler for 't': timeout_s must be more than 0, not 0"),
        ({"timeout_s": -3.0}, "the handler for 't': timeout_s must be more than 0, not -3.0"),
    ],
)
def test_limits_of_a_handler_are_refused_at_registration(limits: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Worker("http://127.0.0.1:8080").handler("t", **limits)(lambda: None)


def test_a_handler_needs_a_job_type_and_a_function() -> None:
    worker: Any = Worker("http://127.0.0.1:8080")
    with pytest.raises(ValueError, match="job_type: must not be empty"):
        worker.handler("")(lambda: None)
    with pytest.raises(TypeError, match="the handler for 't' is not a function: 3"):
        worker.handler("t")(3)
    assert worker.handlers == {}


@pytest.mark.parametrize("make", [Client, SyncClient])
@pytest.mark.parametrize("limit", ["timeout_s", "exchange_timeout_s"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan")])
def test_a_client_without_time_is_refused_at_construction(make: Callable[..., Any], limit: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{limit} must be more than 0, not {value}"):
        make("http://127.0.0.1:8080", **{limit: value})


def gives_number(job: JobContext) -> int:
    return job.attempt


def gives_maybe_text(job: JobContext) -> str | None:
    return job.id


async def gives_list(job: JobContext) -> list[dict[str, str]]:
    return [{"id": job.id}]


@pytest.mark.parametrize(
    ("handler", "kind"), [(gives_number, "int"), (gives_maybe_text, "str"), (gives_list, r"list\[dict\[str, str\]\]")]
)
def test_a_handler_that_returns_no_variables_is_refused_at_registration(handler: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=f"the handler for 't' returns {kind}: it has to return variables"):
        Worker("http://127.0.0.1:8080").handler("t")(handler)


def gives_variables(job: JobContext) -> dict[str, int] | None:
    return {"attempt": job.attempt}


def test_a_handler_that_returns_variables_or_nothing_is_taken() -> None:
    assert list(registered(gives_variables)) == ["t"]
    assert list(registered(print)) == ["t"]


def registered(handler: Any) -> Any:
    worker = Worker("http://127.0.0.1:8080")
    worker.handler("t")(handler)
    return worker.handlers


CALLERS = [*product(["http://127.0.0.1:9", "grpc://127.0.0.1:9"], ["blocking", "asyncio", "trio"])]


@pytest.mark.parametrize(
    ("url", "backend"), mostly_slow(CALLERS, quick=[CALLERS[0], CALLERS[5]], reason="a program for each caller")
)
def test_a_failed_call_names_the_address_in_few_lines(url: str, backend: str) -> None:
    program = f"""
import anyio
from penstock.client import Client, SyncClient

async def main():
    async with Client({url!r}, timeout_s=0.2) as client:
        await client.get_instance("1f")

def blocking():
    with SyncClient({url!r}, timeout_s=0.2) as client:
        client.get_instance("1f")

blocking() if {backend!r} == "blocking" else anyio.run(main, backend={backend!r})
"""
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SRC)},
    )
    reported = run.stderr.splitlines()
    assert run.returncode == 1
    assert reported[-1].startswith("penstock.client.errors.ConnectionFailed: connection-failed: no connection to ")
    assert url.rpartition("/")[2] in reported[-1]
    assert "The above exception" not in run.stderr
    assert len(reported) <= LINES_MAX, run.stderr
