"""A process that runs the embedded PostgreSQL until its standard input ends: an engine for test_embedded.py."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import trio

from penstock.store.db.connection import TrioConnection
from penstock.store.embedded.embedded import embedded
from tests.postgres import FAST_SETTINGS


async def main(data_dir: Path) -> None:
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        async with embedded(data_dir, settings={**FAST_SETTINGS, "synchronous_commit": "on"}) as dsn:
            print(dsn, flush=True)
            async for _ in signals:
                async with await TrioConnection.connect(dsn) as connection:
                    print("interrupted", await connection.fetch("SELECT 1"), flush=True)
                break
            await trio.to_thread.run_sync(sys.stdin.readline)


trio.run(main, Path(sys.argv[1]))
