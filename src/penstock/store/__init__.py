"""PostgreSQL: the only place with SQL. Connection, pool, batching, and one module per noun.

Stands on psycopg, of which `connection.py` overrides private methods: refuses to be imported with a version that the
cancellation suite was not run over (`tools/psycopg_versions.py` does that, and pyproject.toml has the same range).
"""

from __future__ import annotations

import re

import psycopg

PSYCOPG_FROM = (3, 2, 13)
PSYCOPG_BELOW = (3, 4)
PSYCOPG_NOT = (3, 3, 0)
"""Fails the suite: a server cursor's CLOSE, cancelled, leaves its transaction open."""


def check_psycopg(version: str) -> None:
    """Raises ImportError, with a sentence for who installed it."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if PSYCOPG_FROM <= numbers < PSYCOPG_BELOW and numbers != PSYCOPG_NOT:
        return
    raise ImportError(
        f"the engine runs on psycopg {psycopg_range()}, this is {version}: pip install 'penstock-workflow[engine]'",
        name="psycopg",
    )


def psycopg_range() -> str:
    """As installers write it."""
    oldest, below, unfit = (".".join(map(str, version)) for version in (PSYCOPG_FROM, PSYCOPG_BELOW, PSYCOPG_NOT))
    return f">={oldest},<{below},!={unfit}"


check_psycopg(psycopg.__version__)
