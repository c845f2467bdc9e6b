"""Faults against COMMITs: sessions that end inside them, and a primary that is replaced by its standby."""

from __future__ import annotations

import random
from contextlib import suppress

import psycopg
import trio

from chaos.rig import Rig
from chaos.server import ROLE

SERVICE_BACK_S = 10.0
"""After a promotion."""
COMMIT_DELAY_US = 20_000
PAUSE_S = 0.03
_TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE usename = %s AND state = 'active' AND (query = 'COMMIT' AND random() < 0.5 OR random() < 0.05)"""


async def terminate_in_commit(rig: Rig, rng: random.Random) -> str:
    """COMMITs take long, and whoever is in one is ended: it takes effect, is answered or not, and then comes FATAL."""
    seconds = rng.uniform(1.5, 4)
    ended = 0
    with suppress(psycopg.OperationalError):
        try:
            _set(rig, COMMIT_DELAY_US, 0)
            with psycopg.connect(rig.dsn, autocommit=True, connect_timeout=5) as connection:
                with trio.move_on_after(seconds):
                    while True:
                        ended += connection.execute(_TERMINATE, (ROLE,)).fetchall()[0][0]
                        await trio.sleep(PAUSE_S)
        finally:
            _set(rig, None, None)
    rig.counts["sessions ended inside COMMITs"] += ended
    return f"{seconds:.1f} s, {ended} sessions"


def _set(rig: Rig, delay_us: int | None, siblings: int | None) -> None:
    with psycopg.connect(rig.dsn, autocommit=True, connect_timeout=5) as connection:
        for name, value in (("commit_delay", delay_us), ("commit_siblings", siblings)):
            text = f"RESET {name}" if value is None else f"SET {name} = {value}"
            connection.execute(f"ALTER SYSTEM {text}".encode())
        connection.execute("SELECT pg_reload_conf()")


async def promote_standby(rig: Rig, rng: random.Random) -> str:
    """The primary is killed and its standby takes its place; then the former primary becomes the standby."""
    assert rig.standby is not None
    away_s = rng.uniform(0, 1)
    former, rig.database_wanted = rig.server, False
    try:
        await former.kill()
        await trio.sleep(away_s)
        rig.server, rig.standby = rig.standby, former
        rig.server.promote()
        began = trio.current_time()
        back = await rig.wait_serving(60)
        took_s = trio.current_time() - began
    finally:
        with trio.CancelScope(shield=True):
            await former.follow(rig.server, "standby")
            await rig.server.wait_for_standby("standby")
        rig.database_wanted = True
    rig.counts["standbys promoted"] += 1
    if not back or took_s > SERVICE_BACK_S:
        rig.complaints.append(f"{took_s:.1f} s after a promotion {'an engine served again' if back else 'none served'}")
    return f"after {away_s:.1f} s, served again {took_s:.1f} s later"
