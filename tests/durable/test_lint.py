"""What lint finds in bodies, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.durable.lint import lint
from tests.durable import shop

BODY = """
@workflow
async def body(o):
    {line}
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("time.time()", "time.time(): the time is different at replay"),
        ("datetime.now(UTC)", "use penstock.durable.now()"),
        ("random.random()", "use penstock.durable.rng()"),
        ("uuid.uuid4()", "uuid4()"),
        ("os.environ['A']", "os.environ: the environment may be different"),
        ("open('x')", "move it into a step"),
        ("await trio.sleep(1)", "use penstock.durable's own"),
        ("threading.Thread()", "a body does no I/O"),
    ],
)
def test_what_differs_at_replay_is_found(line, found):
    [finding] = lint(BODY.format(line=line))
    assert finding.line == 4
    assert found in finding.text


def test_the_order_of_a_set_is_found():
    [finding] = lint(BODY.format(line="for x in {1, 2}: await go(x)"))
    assert "sort it" in finding.text


def test_clean_up_without_a_shield_is_found_and_with_one_not():
    source = """
@workflow
async def body(o):
    try:
        await charge(o)
    finally:
        await release(o)
        with move_on_after(60, shield=True):
            await release(o)
"""
    assert [finding.line for finding in lint(source)] == [7]


def test_steps_and_the_example_are_left_alone():
    assert lint("@step\nasync def charge(o):\n    time.time()\n") == []
    assert lint(Path(shop.__file__).read_text()) == []
