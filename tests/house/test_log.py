"""Logs: their two forms, what they never show, and that a flood stays a trickle."""

from __future__ import annotations

import io
import json
import logging
import warnings

import pytest

from penstock.log.log import RateLimitedLog, configure_logging, get_logger, log_context, set_trace, trace_id
from penstock.settings import Secret

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(out: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.fixture
def out():
    stream = io.StringIO()
    configure_logging("info", "auto", stream)
    return stream


def test_away_from_a_terminal_each_line_is_a_json_object(out):
    get_logger("penstock.engine.jobs").info("lease expired", job="1-2", attempt=3)
    [line] = lines(out)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"message": "lease expired", "level": "info", "component": "engine.jobs", "job": "1-2", "attempt": 3}


def test_on_a_terminal_lines_are_for_people():
    out = Terminal()
    configure_logging("info", "auto", out)
    get_logger("x").info("lease expired", job="1-2")
    assert "lease expired" in out.getvalue()
    assert not out.getvalue().startswith("{")


def test_lines_below_the_level_are_not_written():
    out = io.StringIO()
    configure_logging("warning", "json", out)
    log = get_logger("x")
    log.debug("a")
    log.info("b")
    logging.getLogger("y").info("c")
    log.warning("d")
    assert [line["message"] for line in lines(out)] == ["d"]


def test_standard_library_logs_and_warnings_have_the_same_form(out):
    logging.getLogger("hypercorn.error").warning("bad %s", "frame", extra={"peer": "1.2.3.4"})
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.warn("old thing", stacklevel=1)
    first, second = lines(out)
    assert (first["message"], first["component"], first["level"], first["peer"]) == (
        "bad frame",
        "hypercorn.error",
        "warning",
        "1.2.3.4",
    )
    assert "old thing" in second["message"]


@pytest.mark.parametrize("form", ["json", "human"])
def test_secrets_are_never_written(form):
    out = io.StringIO()
    configure_logging("debug", form, out)
    log = get_logger("x")
    log.info(
        "settings",
        postgres_dsn="hunter2",
        kafka_sasl_password="hunter2",
        authorization="hunter2",
        kept=Secret("hunter2"),
    )
    log.info("connecting to postgresql://u:hunter2@db/x?password=hunter2")
    log.warning("database is away", error=ValueError("connection to 'host=db password=hunter2' failed"))
    logging.getLogger("psycopg").warning("dsn was %s", "host=db password='hunter2\\' and more' user=u")
    assert "hunter2" not in out.getvalue()
    assert "and more" not in out.getvalue()
    assert "user=u" in out.getvalue()


@pytest.mark.parametrize("form", ["json", "human"])
def test_a_traceback_shows_no_local_variables(form):
    out = io.StringIO()
    configure_logging("debug", form, out)
    try:
        secret = "".join(["hunter", "2"])
        raise LookupError(len(secret))
    except LookupError:
        get_logger("x").exception("it broke")
    assert "LookupError: 7" in out.getvalue()
    assert "hunter2" not in out.getvalue()


def test_a_requests_trace_is_in_all_lines_of_its_task(out):
    log = get_logger("x")
    set_trace(TRACEPARENT)
    log.info("a")
    set_trace(TRACEPARENT.encode())
    log.info("b")
    set_trace(None)
    log.info("c")
    assert [line.get("trace_id") for line in lines(out)] == [TRACE, TRACE, None]


@pytest.mark.parametrize(
    "nonsense", ["", "00", f"00-{'0' * 32}-b7ad6b7169203331-01", TRACEPARENT.upper(), b"\xff" * 60, TRACEPARENT + "\nx"]
)
def test_a_traceparent_that_is_none_clears_the_trace(nonsense):
    set_trace(TRACEPARENT)
    set_trace(nonsense)
    assert trace_id() is None


def test_context_is_added_inside_its_block_only(out):
    log = get_logger("x")
    with log_context(instance="i1"):
        log.info("a")
    log.info("b")
    assert [line.get("instance") for line in lines(out)] == ["i1", None]


def test_a_reader_that_went_away_fails_nobody():
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    configure_logging("info", "json", Gone())
    get_logger("x").info("a")
    logging.getLogger("y").warning("b")


def test_a_flood_is_counted_in_one_line_per_interval(out):
    now = 0.0
    limited = RateLimitedLog(get_logger("x"), interval_seconds=10, clock=lambda: now)
    for _ in range(5):
        limited.warning("db", "database is away")
    limited.warning("other", "something else")
    now = 10.0
    limited.warning("db", "database is away")
    limited.warning("other", "something else")
    assert [(line["message"], line.get("left_out")) for line in lines(out)] == [
        ("database is away", None),
        ("something else", None),
        ("database is away", 4),
        ("something else", None),
    ]


def test_a_flood_of_keys_takes_bounded_memory(out):
    limited = RateLimitedLog(get_logger("x"), interval_seconds=10, max_keys=3, clock=lambda: 0.0)
    for number in range(10):
        limited.info(str(number), "a")
    limited.info("9", "b")
    limited.info("0", "c")
    assert [line["message"] for line in lines(out)] == ["a"] * 10 + ["c"]
