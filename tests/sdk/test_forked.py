"""Clients in a process that was forked, where the parent's threads are gone and its sockets still open."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sdk.running_engine import REPOSITORY, RunningEngine

TIMEOUT_S = 120

BLOCKING = """
import os, sys
from penstock.client import SyncClient, NotFound

def look(client, who):
    try:
        client.get_instance("1f")
    except NotFound:
        print(who, "was answered", flush=True)

with SyncClient(sys.argv[1], timeout_s=5) as client, SyncClient(sys.argv[1]) as closed:
    closed.close()
    look(client, "parent")
    child = os.fork()
    if child == 0:
        look(client, "child")
        try:
            closed.is_ready()
        except RuntimeError as error:
            print("child:", error, flush=True)
    else:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        look(client, "parent")
"""

UNUSED = """
import os, sys
from penstock.client import SyncClient

with SyncClient(sys.argv[1]) as client:
    if os.fork() == 0:
        print("child", flush=True)
    else:
        os.wait()
        print("parent", client.is_ready(), flush=True)
"""

ASYNC = """
import asyncio, os, sys
from penstock.client import Client, NotFound

async def look(who):
    try:
        await client.get_instance("1f")
    except NotFound:
        print(who, "was answered", flush=True)

async def parent():
    await look("parent")
    child = os.fork()
    if child == 0:
        return True
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    await look("parent")
    await client.aclose()
    return False

async def in_child():
    await look("child")
    await client.aclose()

client = Client(sys.argv[1], timeout_s=5)
if asyncio.run(parent()):
    asyncio.run(in_child())
"""

OWN_HTTP = """
import os, sys, httpx
from penstock.client import RestTransport, SyncClient

with SyncClient(RestTransport(http=httpx.AsyncClient(base_url=sys.argv[1]))) as client:
    assert client.is_ready()
    if os.fork() == 0:
        try:
            client.is_ready()
        except RuntimeError as error:
            print(error, flush=True)
    else:
        os.wait()
        print("parent", client.is_ready(), flush=True)
"""


@pytest.fixture(params=["rest", "grpc"])
def url(request: pytest.FixtureRequest, engine: RunningEngine) -> str:
    return engine.url if request.param == "rest" else engine.grpc_url


def output_of(program: str, url: str) -> list[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, url]
    environment = {"PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow(reason="forks programs that use an engine")
def test_a_forked_child_and_its_parent_have_separate_connections(url: str) -> None:
    assert output_of(BLOCKING, url) == [
        "parent was answered",
        "child was answered",
        "child: this client is closed",
        "parent was answered",
    ]


@pytest.mark.slow(reason="forks programs that use an engine")
def test_a_child_that_ignores_its_parents_client_can_end(url: str) -> None:
    assert output_of(UNUSED, url) == ["child", "parent True"]


@pytest.mark.slow(reason="forks programs that use an engine")
def test_a_used_client_works_in_a_forked_event_loop(url: str) -> None:
    assert output_of(ASYNC, url) == ["parent was answered", "child was answered", "parent was answered"]


@pytest.mark.slow(reason="forks programs that use an engine")
def test_an_own_httpx_client_is_refused_after_a_fork(
    engine: RunningEngine,
) -> None:
    assert output_of(OWN_HTTP, engine.url) == [
        "this client's own httpx client was made before a fork: make both in the child",
        "parent True",
    ]
