"""What is made of a connection string."""

from __future__ import annotations

import psycopg
import pytest

from penstock.store.db.database import with_defaults


@pytest.mark.parametrize(
    "dsn",
    [
        "postgre://u:opalruby@h/x",
        "postgresql://u:opal ruby@h/x",
        "postgresql://u:opal/ruby@h/x",
        "postgresql://u:opal@ruby@h/x",
        "postgresql://u:opal%zzruby@h/x",
        'postgresql://u:opal" ruby@h/x',
        "host=h password=opal ruby",
        "host=h password=opal ruby=1",
    ],
)
def test_an_unreadable_dsn_is_refused_without_showing_its_password(dsn: str) -> None:
    with pytest.raises(psycopg.ProgrammingError, match="the DSN ") as refused:
        with_defaults(dsn)
    assert "opal" not in str(refused.value)
    assert "ruby" not in str(refused.value)
    assert refused.value.__context__ is None or refused.value.__suppress_context__


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "postgresql:///x",
        "postgresql://u@h1:5432,h2:5433/x?target_session_attrs=read-write",
        "postgresql://u:p%40x@[::1]:5432/x",
        "host=@abstract dbname=x",
        "host=/run/postgresql port=5432",
    ],
)
def test_any_dsn_of_libpq_is_taken(dsn: str) -> None:
    assert "application_name=penstock" in with_defaults(dsn)
