"""A report of the day before, every night at 2 in Berlin: once, also when the engine was down at 2.

    python examples/nightly_report.py --try     makes the schedule, starts a run of it now, shows the report
    python examples/nightly_report.py           makes the schedule and works, until Ctrl-C

Both need an engine, e.g. `penstock serve`; PENSTOCK_URL says where, by default http://127.0.0.1:8080. What the report
is of comes from `schedule.at`, the nominal time: a run that is late, or a backfill of last week, reports the right day.
`penstock schedule show nightly-report` tells the next times and the last runs.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import anyio
import msgspec

from penstock.client import Client, ScheduleSpec
from penstock.worker import Worker

ENGINE = os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8080")
WORKFLOW = Path(__file__).with_name("nightly-report.json")
BERLIN = ZoneInfo("Europe/Berlin")
NIGHTLY = ScheduleSpec(
    "nightly-report",
    cron=["0 2 * * *"],
    time_zone="Europe/Berlin",
    jitter="PT5M",
    overlap="BUFFER_ONE",
    note="The day before, by shop",
)

worker = Worker(ENGINE)


class Scheduled(msgspec.Struct):
    id: str
    at: datetime


class Report(msgspec.Struct):
    schedule: Scheduled


@worker.handler("report.build")
def build(report: Report) -> dict[str, object]:
    """The day that ended with the night of the run."""
    day = (report.schedule.at.astimezone(BERLIN) - timedelta(days=1)).date()
    return {"report": f"sales of {day:%A, %d %B %Y}"}


async def make_schedule(client: Client) -> None:
    """To put the same again changes nothing: each start of this program may do it."""
    await client.upload_definition(WORKFLOW)
    made = await client.put_schedule("nightly-report", NIGHTLY)
    print("next:", ", ".join(made.next_times[:3]))


async def try_it() -> None:
    async with Client(ENGINE) as client, worker:
        await make_schedule(client)
        run = await client.trigger_schedule("nightly-report", overlap="ALLOW")
        assert run.instance_id is not None
        ended = await client.wait_until_ended(run.instance_id, timeout_s=60)
        print(ended.variables["report"])


async def serve() -> None:
    async with Client(ENGINE) as client:
        await make_schedule(client)
    await worker.run()


if __name__ == "__main__":
    anyio.run(try_it if "--try" in sys.argv else serve)
