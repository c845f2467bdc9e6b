"""How Python values go to PostgreSQL as parameters: as text without a type, so that the server infers it.

psycopg names a type for each value, chosen by the value: 1 is a smallint, 100000 an integer, None nothing. As its
prepared statements are keyed by (SQL, types), one statement with four integers would be parsed and planned up to 81
times over. Untyped, one SQL text is one prepared statement, whatever the values. Where nothing tells the type
(``SELECT $1``, a polymorphic function), write a cast: ``$1::bigint``.
"""

from __future__ import annotations

from datetime import datetime

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.types.bool import BoolDumper
from psycopg.types.datetime import DatetimeDumper
from psycopg.types.numeric import FloatDumper, Int8Dumper


class _UntypedInt(Int8Dumper):
    oid = 0


class _UntypedFloat(FloatDumper):
    oid = 0


class _UntypedBool(BoolDumper):
    oid = 0


class _UntypedDatetime(DatetimeDumper):
    oid = 0  # of aware values; naive ones stay psycopg's `timestamp`


def _untyped_adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_dumper(int, _UntypedInt)
    adapters.register_dumper(float, _UntypedFloat)
    adapters.register_dumper(bool, _UntypedBool)
    adapters.register_dumper(datetime, _UntypedDatetime)
    return adapters


UNTYPED_ADAPTERS = _untyped_adapters()
