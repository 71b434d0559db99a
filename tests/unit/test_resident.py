"""The process's memory, as its allocator and the kernel have it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.telemetry import resident as resident_module
from runtime.telemetry.resident import resident

ARENAS = """
import sys, threading
from runtime.telemetry.resident import share_arena

share_arena()
kept = []
threads = [threading.Thread(target=lambda: kept.append(bytearray(5_000))) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sizes = []
for line in open("/proc/self/maps"):
    start, end = (int(each, 16) for each in line.split()[0].split("-"))
    if line.split()[1] == "---p" and line.split()[4] == "0":
        sizes.append(end - start)
print(sum(30 << 20 < size < 64 << 20 for size in sizes))  # what an arena has in reserve
"""


@pytest.mark.skipif(sys.platform != "linux" or not os.confstr("CS_GNU_LIBC_VERSION"), reason="it is glibc's")
@pytest.mark.parametrize(("given", "shared"), [({}, True), ({"MALLOC_ARENA_MAX": "8"}, False)])
def test_threads_share_an_arena_unless_the_environment_says_otherwise(given: dict[str, str], shared: bool) -> None:
    clean = {k: v for k, v in os.environ.items() if k not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")}
    done = subprocess.run([sys.executable, "-c", ARENAS], env={**clean, **given}, stdout=subprocess.PIPE, check=True)
    assert (int(done.stdout) == 0) is shared


@pytest.mark.parametrize("told", ["", "1", "1 x 2"])
def test_what_the_kernel_tells_oddly_is_no_error(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setattr(resident_module.Path, "read_text", lambda _path: told)
    assert resident() > 1_000_000


def test_no_proc_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(resident_module.Path, "read_text", missing)
    assert resident() > 1_000_000
