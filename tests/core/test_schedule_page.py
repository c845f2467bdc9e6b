"""docs/schedules.md: each schedule that it shows is one, with the times that it says."""

from __future__ import annotations

import re
from datetime import datetime

import msgspec
import pytest

from penstock.engine.schedules.schedule_spec import check_spec, read_rules
from penstock.wire.schedule import ScheduleSpec
from tests.house.sources import TOP

PAGE = (TOP / "docs" / "schedules.md").read_text()
SECTIONS = {section.partition("\n")[0]: section for section in PAGE.split("\n### ")[1:]}
TIME = re.compile(r"`(\d{4}-\d\d-\d\dT[^`]+Z)`")


@pytest.mark.parametrize("title", SECTIONS)
def test_a_question_is_answered_with_the_times_it_says(title: str) -> None:
    section = SECTIONS[title]
    [body] = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    spec = msgspec.json.decode(body, type=ScheduleSpec)
    reported = [line for line in section.splitlines() if line.startswith("After ")]
    assert reported
    for line in reported:
        after, *expected = [datetime.fromisoformat(text) for text in TIME.findall(line)]
        rules = read_rules("page", check_spec("page", spec, after).decode())
        found = [at for at, _ in zip(rules.times.after(after), expected, strict=False)]
        assert found == expected, line


def test_the_page_answers_some_questions() -> None:
    assert len(SECTIONS) >= 6
