"""What a benchmark finds, the machine it ran on, and small sums."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

Value = float | int | str

QUIET = 1.0
"""Load (one minute) below which a measurement is worth something on two cores."""

PATIENCE = 5.0
"""Seconds that a measurement waits for a quiet machine; then it goes on, and says how loaded it was."""


@dataclass(frozen=True)
class Row:
    """One figure: its absolute values, and where there is something to compare with, their ratio and its target.

    ``target`` is "<= 0.2", ">= 6" or empty. ``load`` is the machine's when the measurement began.
    """

    figure: str
    values: Mapping[str, Value]
    ratio: float | None = None
    target: str = ""
    load: float = 0.0

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        if self.ratio is None or not self.target:
            return None
        sign, bound = self.target.split()
        return self.ratio <= float(bound) if sign == "<=" else self.ratio >= float(bound)

    def as_json(self) -> dict[str, Any]:
        """For the file."""
        told = {"figure": self.figure, "ratio": self.ratio, "target": self.target, "reached": self.reached}
        return {
            **{k: v for k, v in told.items() if v not in (None, "")},
            "values": dict(self.values),
            "load": self.load,
        }


@dataclass(frozen=True)
class Sample:
    """What a stretch of work took. CPU in seconds, of the processes that are measured; latencies in ms."""

    events: int
    wall: float
    cpu: float
    latencies: Sequence[float] = ()
    more: Mapping[str, Value] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.wall

    @property
    def cpu_ms(self) -> float:
        """CPU per event, in ms."""
        return self.cpu / self.events * 1000

    def values(self, who: str) -> dict[str, Value]:
        """For a row's absolute values, each named for whom it is of."""
        found: dict[str, Value] = {
            f"{who} events/s": self.rate,
            f"{who} CPU ms": self.cpu_ms,
            f"{who} wall ms": self.wall / self.events * 1000,
        }
        if self.latencies:
            found[f"{who} p50 ms"] = quantile(self.latencies, 0.5)
            found[f"{who} p99 ms"] = quantile(self.latencies, 0.99)
        return {**found, **{f"{who} {name}": value for name, value in self.more.items()}}


def told(row: Row) -> Row:
    """The same row, said on stderr at once: a long benchmark shows that it goes on."""
    ratio = "" if row.ratio is None else f" {row.ratio:.3g}"
    first = ", ".join(
        f"{name} {value:.4g}" for name, value in list(row.values.items())[:2] if not isinstance(value, str)
    )
    sys.stderr.write(f"{row.figure}{ratio} ({first})\n")
    return row


def quantile(values: Iterable[float], q: float) -> float:
    """The q-quantile, nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def load() -> float:
    """The machine's load over the last minute."""
    return round(os.getloadavg()[0], 2)


def quiet() -> float:
    """Wait a little for a quiet machine; the load with which the measurement begins.

    The load of a minute is slow to fall, and what counts is whether others work now: half a second of idling will do.
    """
    until = time.monotonic() + PATIENCE
    while load() >= QUIET and psutil.cpu_percent(0.5) >= 15.0 and time.monotonic() < until:
        time.sleep(2.0)
    return load()


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def cpu_of(processes: Iterable[psutil.Process]) -> float:
    """Seconds of CPU that these have used so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def pss_of(processes: Iterable[psutil.Process]) -> float:
    """Memory of these in MB, each shared page counted once among those that share it."""
    return sum(process.memory_full_info().pss for process in processes) / 1e6
