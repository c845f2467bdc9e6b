"""`penstock bench` of an installation: a load on an engine that runs there, and what its callers saw of it.

No harness. That one starts engines of its own, calibrates, and counts CPU, WAL and commits; it stands in a checkout
only (`benchmarks/`), where it is what `penstock bench` runs. Here callers and workers share one process with the
clock: the figures say what this machine does with this engine, and are none to compare releases by.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Final

import anyio
import typer

from penstock.cli.engine import CALL_TIMEOUT_S, DEFAULT_URL, TokenFileOption, UrlOption, read_token
from penstock.cli.options import JsonOption, print_json
from penstock.cli.plain import echo, echo_lines
from penstock.client import Client, ClientError

NAME: Final = "penstock-bench"
"""Of its definition; its job types begin with it."""
SAID: Final = (
    "This is a load generator, not the harness: that one is in a checkout of the repository (`penstock bench` there)."
)
HARNESS_WORDS: Final = frozenset({"run", "list", "compare", "pair", "against", "show", "size"})
WAIT_S: Final = 10
"""How long a call for an end, or for jobs, may wait."""
JOBS_AT_ONCE: Final = 10
POINTS: Final = (0.5, 0.95, 0.99)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main(words: list[str], program: str) -> None:
    """Run the command line; ends the process."""
    if words and words[0] in HARNESS_WORDS:
        echo(f"penstock: there is no `{words[0]}` here. {SAID}", err=True)
        raise SystemExit(2)
    app(words, prog_name=program)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def load(
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    seconds: Annotated[float, typer.Option(help="How long to start instances.", min=0.1, max=3_600)] = 10.0,
    callers: Annotated[
        int, typer.Option(help="How many clients start instances, and how many workers there are.", min=1, max=500)
    ] = 16,
    steps: Annotated[int, typer.Option(help="How many jobs an instance has, one after the other.", min=1, max=50)] = 3,
    as_json: JsonOption = False,
) -> None:
    """A load generator, not the harness, which is in a checkout: puts load on an engine that runs.

    Each caller starts an instance, waits for its end and starts the next one; workers poll and complete the jobs over
    REST, one call each. Tells instances and jobs per second, and how long instances took. They stay in the engine, as
    instances of the definition `penstock-bench`.
    """
    try:
        report = anyio.run(_run, url, read_token(token_file), seconds, callers, steps, backend="trio")
    except* (ClientError, OSError, ValueError) as errors:
        echo(f"penstock: {_first(errors)}", err=True)
        raise typer.Exit(1) from errors
    if as_json:
        print_json(report)
        return
    speed = f"{report['instancesPerSecond']:.0f} instances/s, {report['jobsPerSecond']:.0f} jobs/s"
    took = ", ".join(f"{name} {value:.1f} ms" for name, value in report["endToEndMs"].items())
    counted = f"{report['instances']} instances of {steps} jobs in {report['seconds']:.1f} s, {callers} callers"
    echo_lines([SAID, f"{counted}: {speed}", f"from start to end: {took}"])


def _first(errors: BaseException) -> BaseException:
    """What failed first, of what failed together."""
    found = errors
    while together := getattr(found, "exceptions", None):
        found = together[0]
    return found


def definition(steps: int) -> dict[str, Any]:
    """Its jobs one after the other."""
    ways = [*(f"work-{at}" for at in range(steps)), "end"]
    work = [
        {"id": id, "name": id, "type": "SERVICE_TASK", "jobType": NAME, "nextStep": way}
        for id, way in itertools.pairwise(ways)
    ]
    return {"id": NAME, "name": "Load", "steps": [*work, {"id": "end", "name": "End", "type": "END"}]}


class _Load:
    """One run."""

    def __init__(self, client: Client, version: int, ends_at: float) -> None:
        self._client = client
        self._version = version
        self._ends_at = ends_at
        self.took_s: list[float] = []

    async def call_until_time_is_up(self) -> None:
        """A caller."""
        while (began := anyio.current_time()) < self._ends_at:
            started = await self._client.start_instance(NAME, version=self._version, wait_s=WAIT_S)
            if not started.ended:
                await self._client.wait_until_ended(started.id)
            self.took_s.append(anyio.current_time() - began)

    async def work(self, name: str) -> None:
        """A worker; ends by being cancelled."""
        while True:
            for job in await self._client.poll_jobs(name, [NAME], max_jobs=JOBS_AT_ONCE, wait_s=WAIT_S):
                await self._client.complete_job(job.id, name, attempt=job.attempt)


async def _run(url: str, token: str | None, seconds: float, callers: int, steps: int) -> dict[str, Any]:
    async with Client(url, token=token, timeout_s=CALL_TIMEOUT_S) as client:
        summary = await client.upload_definition(definition(steps))
        began = anyio.current_time()
        load = _Load(client, summary.version, began + seconds)
        async with anyio.create_task_group() as workers:
            for number in range(callers):
                workers.start_soon(load.work, f"{NAME}-{number}")
            await _all_callers(load, callers)
            workers.cancel_scope.cancel()
        took_s = anyio.current_time() - began
    return _report(sorted(load.took_s), took_s, steps)


async def _all_callers(load: _Load, count: int) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(load.call_until_time_is_up)


def _report(took_s: list[float], seconds: float, steps: int) -> dict[str, Any]:
    """``took_s``: in order."""
    count = len(took_s)
    return {
        "kind": "load generator",
        "instances": count,
        "seconds": seconds,
        "instancesPerSecond": count / seconds,
        "jobsPerSecond": count * steps / seconds,
        "endToEndMs": {
            f"p{point * 100:.0f}": 1_000 * took_s[min(count - 1, int(point * count))] for point in POINTS if count
        },
    }
