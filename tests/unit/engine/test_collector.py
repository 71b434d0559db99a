"""What there is to know of the garbage collector, in processes where no other thread frees anything."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from runtime.engine.collector import Collector
from runtime.telemetry.resident import resident

GROWTH = """
import gc
from runtime.engine.collector import Collector

collector = Collector()
collector.keep()
collector.come_after(50)
for count in (0, 1, 297, 304, 700, 5_000, 40_000):
    gc.collect()
    kept = [[each] for each in range(count)]
    assert count <= collector.grown() <= count + 1_000, (count, collector.grown())
    del kept
"""

FOUND = """
import gc
from runtime.engine.collector import Collector

class Ring:
    def __init__(self):
        self.self = self

collector = Collector()
collector.keep()
collector.collect()
for threshold in (50, 1_000_000):
    collector.come_after(threshold)
    for _ in range(5_000):
        Ring()
    gc.collect()
    for _ in range(3_000):
        Ring()
    before = collector.grown()
    assert 16_000 <= collector.collect() <= 40_000, "rings, and what each has"
    assert collector.grown() < 100
    if threshold == 50:
        assert before < 1_000, "young collections have found them"
    else:
        assert before >= 3_000
"""


def test_growth_is_never_told_too_low() -> None:
    """What young collections have moved on counts too."""
    subprocess.run([sys.executable, "-c", GROWTH], check=True)


def test_what_is_found_counts_whoever_collects() -> None:
    subprocess.run([sys.executable, "-c", FOUND], check=True)


def test_the_schedule_is_kept_once_and_given_back() -> None:
    before, told = gc.get_threshold(), len(gc.callbacks)
    collector = Collector()
    collector.come_after(5)
    assert gc.get_threshold() == before, "it is not kept yet"
    collector.keep()
    collector.keep()
    collector.come_after(123_456)
    assert gc.get_threshold()[0] == 123_456 and len(gc.callbacks) == told + 1
    collector.let_go()
    collector.let_go()
    assert gc.get_threshold() == before and len(gc.callbacks) == told


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the allocator is not asked")
def test_what_is_given_back_is_not_resident() -> None:
    collector = Collector()
    kept = [bytes(50_000) for _ in range(2_000)]
    held = collector.size()
    del kept[:-1]  # the last holds the rest in the allocator
    collector.give_back()
    assert collector.size() < held - 50_000_000
    assert resident() > 0
