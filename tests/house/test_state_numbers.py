"""Numbers of states, statuses and kinds in SQL are named by comments, with the names of the core."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

import pytest

from penstock.core.rules.start_rules import WindowKind
from penstock.core.rules.state import HistoryKind, InstanceStatus, TokenState
from penstock.core.time.schedule import RunOutcome
from penstock.kernel.record import JournalKind
from tests.house.sources import TOP

FILES = [*sorted((TOP / "src/penstock/store/queries").glob("*.sql")), TOP / "schema.sql"]
MEANINGS: dict[str, tuple[type[IntEnum], ...]] = {
    "state": (TokenState,), "status": (InstanceStatus,), "kind": (HistoryKind, JournalKind, WindowKind),
    "outcome": (RunOutcome,),
}  # fmt: skip
NAMED = re.compile(r"(?<![-\d])(\d+) /\* (\w+) \*/")
ASKED = re.compile(r"\b(?:old_)?(state|status|kind)\b (?:=|<>) (\d+)( /\* \w+ \*/)?")
LISTED = re.compile(r"\b(state|status|kind) IN \(([^()$]*)\)")
CASE = re.compile(r"\b(state|status|kind) = CASE\b(.*?)\bEND\b", re.DOTALL)
CASE_OF = re.compile(r"\bCASE (?:\w+\.)?(?:old_)?(state|status|kind)\b(.*?)\bTHEN\b", re.DOTALL)
GIVEN = re.compile(r"\b(\d+(?: /\* \w+ \*/)?) AS (state|status|kind)\b")
CASE_AS = re.compile(r"\bCASE\b((?:(?!\bEND\b).)*)\bEND AS (state|status|kind)\b", re.DOTALL)
BARE = re.compile(r"(?<![\w$.])(?<!WHEN )\d+( /\* \w+ \*/)?")
INSERT = re.compile(
    r"\bINSERT INTO (?:token|history|instance|abnormal_end)\b[^(]*\(([^()]*)\)\s*(SELECT\b.*)", re.DOTALL
)


def code(path: Path) -> str:
    return re.sub(r"--.*", "", path.read_text())


def items(text: str) -> list[str]:
    """What the commas of ``text`` divide, up to the bracket that closes around it or the list's end."""
    found, depth, begin = [], 0, 0
    for place, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        ends = depth < 0 or (depth == 0 and re.match(r"\s(FROM|UNION)\b", text[place:]))
        if ends or (depth == 0 and char == ","):
            found.append(text[begin:place])
            begin = place + 1
        if ends:
            break
    return found


def written(sql: str) -> Iterator[tuple[str, str]]:
    """What INSERT … SELECT puts into a column with such a name."""
    for insert in INSERT.finditer(sql):
        columns = [column.strip() for column in insert[1].split(",")]
        statement = re.split(r"\n-- name|;|\n\n", insert[2])[0]
        for arm in re.split(r"\bUNION ALL\b", statement):
            values = items(re.sub(r"^\s*SELECT\s", "", arm))
            if len(values) == len(columns):
                yield from (
                    (column, value) for column, value in zip(columns, values, strict=True) if column in MEANINGS
                )


def numbers(sql: str) -> Iterator[tuple[str, str]]:
    """Each number that is a state, a status or a kind, with the column that says which; its comment is with it."""
    for found in ASKED.finditer(sql):
        yield found[1], found[2] + (found[3] or "")
    for found in GIVEN.finditer(sql):
        yield found[2], found[1]
    for found in CASE_AS.finditer(sql):
        yield from (
            (found[2], number[1]) for number in re.finditer(r"\b(?:THEN|ELSE) (\d+(?: /\* \w+ \*/)?)", found[1])
        )
    for found in LISTED.finditer(sql):
        yield from ((found[1], item.strip()) for item in found[2].split(","))
    for found in (*CASE.finditer(sql), *CASE_OF.finditer(sql)):
        yield from (
            (found[1], number[1].strip())
            for number in re.finditer(r"\b(?:THEN|ELSE|WHEN) (\d+( /\* \w+ \*/)?)", found[2])
        )
    for column, value in written(sql):
        yield from ((column, number[0]) for number in BARE.finditer(value))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_numbers_of_states_are_named_by_comments(path: Path) -> None:
    wrong = [
        f"{column} {number}"
        for column, number in numbers(code(path))
        if (found := NAMED.fullmatch(number)) is None or found[2] not in names(MEANINGS[column], int(found[1]))
    ]
    assert wrong == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_comment_beside_a_number_is_true(path: Path) -> None:
    wrong = [
        found[0]
        for found in NAMED.finditer(code(path))
        if not any(found[2] in names(meanings, int(found[1])) for meanings in MEANINGS.values())
    ]
    assert wrong == []


def names(meanings: tuple[type[IntEnum], ...], number: int) -> list[str]:
    return [member.name for meaning in meanings for member in meaning if member == number]


def test_the_check_sees_all_ways_sql_writes_a_state() -> None:
    sql = """
    SELECT t.state = 1, old_state <> 5 /* LOCKED */, x.kind IN (1, 2 /* FAILED */);
    UPDATE token SET state = CASE WHEN a THEN 2 ELSE 0 /* READY */ END, x = CASE l.old_state WHEN 5 THEN 1 END;
    INSERT INTO history (a, kind, b) SELECT nextval('s'), CASE y WHEN z THEN 13 ELSE 11 END, 1 FROM t
    UNION ALL SELECT 1, 12, f(2, 3) FROM u;
    UPDATE token SET a = 1 RETURNING 7 AS kind, 8 /* CALLED */ AS state, CASE b WHEN c THEN 9 ELSE 10 END AS kind
    """
    assert sorted(number for _, number in numbers(sql)) == sorted(
        [
            "1",
            "5 /* LOCKED */",
            "1",
            "2 /* FAILED */",
            "2",
            "0 /* READY */",
            "5",
            "13",
            "11",
            "12",
            "7",
            "8 /* CALLED */",
            "9",
            "10",
        ]
    )
