"""Who reads what a command prints may go before its end, as `head` does: with real pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import StartRequest, SyncClient
from penstock.testing.definitions import linear
from penstock.testing.postgres import PostgresServer
from tests.sdk.running_engine import RunningEngine, running_engine

ENDED_S = 60


def begun(*words: str, url: str = "", python: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, *python, "-m", "penstock", *words]
    environment = {**os.environ, "PENSTOCK_URL": url} if url else None
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment
    )


def left(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and what it told after its reader has gone."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        process.stdout.close()
        reported = process.stderr.read()
        return process.wait(ENDED_S), reported


@pytest.mark.parametrize(
    ("words", "python"),
    [
        (["version"], ()),
        (["--help"], ()),
        (["expr", "1 + 1"], ()),
        (["expr", "1 + 1"], ("-u",)),
        (["config", "show"], ()),
        (["serve", "--help"], ()),
    ],
)
def test_a_command_whose_reader_has_gone_ends_quietly(words: list[str], python: tuple[str, ...]) -> None:
    assert left(begun(*words, python=python)) == (141, "")


@pytest.mark.parametrize("words", [["version"], ["--help"], ["serve", "--help"], ["config", "show"]])
def test_a_full_disk_is_reported_in_a_line(words: list[str]) -> None:
    command = [sys.executable, "-m", "penstock", *words]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=ENDED_S, check=False)
    reported = "penstock: what it prints can't be written: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, reported)


def test_a_pipe_that_is_read_gets_all_of_it() -> None:
    process = begun("expr", "${text + 'ü'}", '{"text": "x"}')
    assert process.communicate(timeout=ENDED_S) == ('"xü"\n', "")
    assert process.returncode == 0


@pytest.fixture(scope="module")
def engine(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with running_engine(postgres_server, tmp_path_factory.mktemp("engine")) as running:
        with SyncClient(running.url) as client:
            client.upload_definition(linear(1))
        yield running


@pytest.mark.slow(reason="commands in processes")
def test_commands_on_an_engine_end_quietly_too(engine: RunningEngine, tmp_path: Path) -> None:
    with SyncClient(engine.url) as client:
        batch = client.start_batch([StartRequest("linear")] * 3)
    for words in (
        ("instance", "list", "--limit", "1"), ("instance", "list", "--json"), ("batch", "results", batch.id),
        ("queue", "list"), ("instance", "start", "linear"),
    ):  # fmt: skip
        code, reported = left(begun(*words, url=engine.url))
        assert (words, code, reported.partition("there are more")[0]) == (words, 141, "")


@pytest.mark.slow(reason="commands in processes")
def test_who_watches_an_instance_may_go(engine: RunningEngine) -> None:
    with SyncClient(engine.url) as client:
        id = client.start_instance("linear").id
        watch = begun("instance", "watch", id, url=engine.url)
        assert watch.stdout is not None
        assert watch.stdout.readline().startswith(f"{id}  ACTIVE")
        watch.stdout.close()
        client.cancel_instance(id)
    assert left(watch) == (141, "")
