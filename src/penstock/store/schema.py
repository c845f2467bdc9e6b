"""Finds ``schema.sql``, the one truth about the tables.

It stands at the top of the repository and, in a wheel, inside the package. Must not cache: it is read once a start.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

__all__ = ["schema_sql"]


def schema_sql() -> str:
    """The text of ``schema.sql``: of the wheel if this is one, else of the checkout that the package runs from."""
    packaged = resources.files("penstock") / "schema.sql"
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).parents[3] / "schema.sql").read_text(encoding="utf-8")
