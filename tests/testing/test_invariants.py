"""What does not hold is told by its own sentence, with the rows that show it."""

from __future__ import annotations

import psycopg

from penstock.testing.invariants import find_broken


def test_each_broken_invariant_is_named_with_its_rows(database_dsn: str) -> None:
    assert find_broken(database_dsn) == []
    with psycopg.connect(database_dsn) as connection:
        connection.execute("INSERT INTO signal_id VALUES (7, 'lost', '')")
        connection.execute("INSERT INTO job_note (token_id, seq, attempt) SELECT n, 1, 1 FROM generate_series(1, 30) n")
    broken = {each.sentence: each.rows for each in find_broken(database_dsn, rows_max=3)}
    assert broken.keys() == {
        "ids of signals are remembered for instances that are there",
        "notes of heartbeats belong to tokens",
    }
    assert broken["ids of signals are remembered for instances that are there"] == [(7, "lost")]
    assert len(broken["notes of heartbeats belong to tokens"]) == 3
