"""Steps on asyncio that a kill, Ctrl-C or SIGTERM cuts off: the next start executes them again, and they end."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.durable.programs import Program, ended, own_directory, until

pytestmark = pytest.mark.slow(reason="programs in processes of their own")

USES = ("client", "timeout", "group", "process")
STEPS = """
import asyncio, pathlib, sys
from penstock.durable import App, open_nursery, step, workflow

here = pathlib.Path(__file__).parent

async def held(name: str) -> str:
    if not (here / f"{name} begun").exists():
        (here / f"{name} begun").touch()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            (here / f"{name} cancelled").touch()
            raise
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]

class Client:
    def __init__(self) -> None:
        self.found = asyncio.get_running_loop().create_future()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.found.set_result(await reader.readline())
        writer.close()

@step
async def client() -> str:
    used = Client()
    async with await asyncio.start_server(used.answer, "127.0.0.1") as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        loop = await held("client")
        writer.write(b"line\\n")
        assert await used.found == b"line\\n"
        writer.close()
        return loop

@step
async def timeout() -> str:
    async with asyncio.timeout(600):
        return await held("timeout")

@step
async def group() -> str:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(held("group"))
    return task.result()

@step
async def process() -> str:
    child = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    try:
        loop = await held("process")
        assert await child.communicate(b"text") == (b"text", None)
        return loop
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()

@workflow
async def all_uses() -> dict[str, str]:
    found: dict[str, str] = {}

    async def note(name: str, use: object) -> None:
        found[name] = await use()

    async with open_nursery() as nursery:
        for use in (client, timeout, group, process):
            nursery.start_soon(note, use.name, use, key=use.name)
    return dict(sorted(found.items()))

app = App(all_uses)
"""
RUNS = STEPS + 'print(*app.run(all_uses, id="a").values())\n'
ENTERED = """
async def main() -> None:
    async with app:
        print(*(await (await app.start(all_uses, id="a")).result()).values())

"""


@pytest.fixture
def directory() -> Generator[Path]:
    yield from own_directory()


def cut_off(program: Program, number: signal.Signals) -> tuple[int, str]:
    """Start it, send the signal when all steps are under way, and start it again."""
    first = program.start()
    until(lambda: all((program.directory / f"{use} begun").exists() for use in USES), first)
    first.send_signal(number)
    assert ended(first)[0] == (-number if number is signal.SIGKILL else 128 + number)
    code, said, errors = ended(program.start())
    assert code == 0, errors
    return sum((program.directory / f"{use} cancelled").exists() for use in USES), said


@pytest.mark.parametrize(
    ("number", "cancelled"), [(signal.SIGKILL, 0), (signal.SIGINT, len(USES)), (signal.SIGTERM, len(USES))]
)
def test_steps_end_at_the_next_start(directory: Path, number: signal.Signals, cancelled: int):
    assert cut_off(Program(directory, RUNS), number) == (cancelled, "asyncio asyncio asyncio asyncio\n")


def test_steps_of_a_program_on_uvloop_end_after_a_kill(directory: Path, leave_out: Callable[[str], None]):
    if importlib.util.find_spec("uvloop") is None:
        leave_out("no uvloop in this environment: pip install uvloop")
    program = Program(directory, f"{STEPS}{ENTERED}import uvloop\n\nuvloop.run(main())\n")
    assert cut_off(program, signal.SIGKILL) == (0, "uvloop uvloop uvloop uvloop\n")
