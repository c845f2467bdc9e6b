"""The collector of cyclic garbage in a process of its own: what it walks over, and what it finds in the end."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import gc
import weakref

from penstock.runtime.garbage import CROWD_BYTES, GROWTH_BEFORE_SCAN_BYTES, PAUSE_SECONDS
from penstock.runtime.garbage import Collector, used_memory_bytes

gc.disable()  # collections come when this script asks for them
now, took, used_bytes = 0.0, 0.001, 100_000_000


class Ring:
    def __init__(self):
        self.me = self


def clock():
    global now
    now += took
    return now


thresholds = gc.get_threshold()
collector = Collector(clock, lambda: used_bytes)
collector.start()
{body}
"""


def test_a_full_collection_leaves_out_what_survived_the_last() -> None:
    assert say("""
alive = [[] for _ in range(100_000)]
gc.collect()
print(len(gc.get_objects()) < 1_000, gc.get_freeze_count() > 100_000)
""") == ["True", "True"]


def test_garbage_that_survived_goes_when_a_look_is_due() -> None:
    assert say("""
ring = Ring()
found = weakref.ref(ring)
gc.collect()
del ring
gc.collect()
print(found() is None)
now += 60
gc.collect()
print(found() is None)
""") == ["False", "True"]


def test_memory_that_grew_is_looked_through_before_time() -> None:
    assert say("""
ring = Ring()
found = weakref.ref(ring)
gc.collect()
del ring
used_bytes += GROWTH_BEFORE_SCAN_BYTES - 1
gc.collect()
print(found() is None)
used_bytes += 1
gc.collect()
print(found() is None)
""") == ["False", "True"]


def test_a_look_is_put_off_until_a_crowd_has_gone() -> None:
    assert say("""
ring = Ring()
found = weakref.ref(ring)
gc.collect()
del ring
used_bytes += CROWD_BYTES
now += 100 * PAUSE_SECONDS
gc.collect()
print(found() is None)
used_bytes -= 1
gc.collect()
print(found() is None)
""") == ["False", "True"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_used_memory_is_what_the_process_has() -> None:
    assert say("""
before = used_memory_bytes()
block = bytearray(64_000_000)
print(before > 4_000_000, 60_000_000 < used_memory_bytes() - before < 80_000_000)
""") == ["True", "True"]


def test_the_longer_a_look_took_the_later_is_the_next() -> None:
    assert say("""
now, took = now + 60, 1.0
gc.collect()  # a look of a second
ring = Ring()
found = weakref.ref(ring)
gc.collect()
del ring
now += 1_900
gc.collect()
print(found() is None)
now += 200
gc.collect()
print(found() is None)
""") == ["False", "True"]


def test_stopped_it_is_pythons_own_way() -> None:
    assert say("""
collector.stop()
print(gc.get_freeze_count(), gc.callbacks, gc.get_threshold() == thresholds)
""") == ["0", "[]", "True"]


def say(body: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{body}", body)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()
