"""Stored text commands no terminal: what is printed for people is escaped, at one place; JSON stays as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock.cli
from penstock.cli.options import print_done, print_json, print_page, print_table
from penstock.cli.plain import echo, echo_lines, escaped
from penstock.wire.page import Page

RAW = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202egnp\u2066\u200f\u2028\r\nCOMPLETED\x00\x7f\t"
SHOWN = (
    r"\x1b]0;owned\x07\x1b[31m\x9b2J\u202egnp\u2066\u200f\u2028\r\nCOMPLETED\x00\x7f\t"
)  # fmt: skip


def test_everything_that_moves_or_hides_is_escaped() -> None:
    assert escaped(RAW) == SHOWN
    for number in (
        *range(0x20),
        *range(0x7F, 0xA0),
        0x61C,
        0x200E,
        0x200F,
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
    ):
        assert escaped(chr(number)).isprintable(), hex(number)


def test_what_people_read_is_left_alone() -> None:
    for text in ("Größe 5 · 漢字", "🙂", "a\\nb", "\u0627\u0644"):
        assert escaped(text) == text


def test_a_row_of_a_table_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("instance", "reason"), [("1", RAW), ("2", "boom")])
    assert capsys.readouterr().out.splitlines() == ["instance  reason", f"1         {SHOWN}", "2         boom"]


def test_each_way_to_print_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    echo(RAW)
    echo_lines([RAW])
    print_done({}, RAW, as_json=False)
    print_page(Page(items=[RAW]), ("reason",), lambda each: (each,), as_json=False, limit=1, narrower="")
    told = capsys.readouterr().out.splitlines()
    assert told == [SHOWN, SHOWN, SHOWN, "reason", SHOWN]


def test_json_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"reason": "\u202e\x1b"})
    assert "\u202e\\u001b" in capsys.readouterr().out


def test_nothing_is_printed_for_people_elsewhere() -> None:
    """Every echo of the command line is the one that escapes; what goes round it is JSON, or no text of others."""
    around: list[str] = []
    for file in sorted(Path(penstock.cli.__file__).parent.glob("*.py")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if re.search(r"\btyper\.(sec)?echo\(|\bprint\(|sys\.std(out|err)\.write", line) and "json" not in line:
                around.append(f"{file.name}:{number}: {line.strip()}")
    assert [each for each in around if not each.startswith(("__init__.py", "plain.py"))] == []
