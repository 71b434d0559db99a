"""What KEDA and the horizontal pod autoscaler decide, by their documented rules, for one ScaledObject.

KEDA: a workload is active where any trigger is above its activation value; without an active one and without error it
goes to zero once the cooldown is over; an error with no active trigger is the fallback's. The autoscaler: for each
metric of the type AverageValue value / target, rounded up, the largest of them; one that cannot be had counts as the
fallback's replicas. A number that Redis does not know reaches KEDA as -1, which is not above 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

Object = dict[str, Any]

TOLERANCE = 0.1
"""A ratio so near to 1 changes nothing (--horizontal-pod-autoscaler-tolerance)."""


@dataclass(frozen=True)
class Reading:
    """A trigger's number and target; ``value`` None where it could not be read."""

    value: float | None
    target: float
    activation: float = 0.0

    @property
    def active(self) -> bool:
        return self.value is not None and self.value > self.activation


@dataclass(frozen=True)
class Scaler:
    """One ScaledObject."""

    spec: Object

    @property
    def least(self) -> int:
        return int(self.spec["minReplicaCount"])

    @property
    def most(self) -> int:
        return int(self.spec["maxReplicaCount"])

    def fallback(self, now: int) -> int:
        """The replicas that an unreadable trigger stands for."""
        assert self.spec["fallback"]["behavior"] == "currentReplicasIfHigher"
        return max(now, int(self.spec["fallback"]["replicas"]))

    def settle(self, readings: Sequence[Reading], now: int) -> int:
        """Where it ends if the readings stay: cooldown, failure threshold and stabilisation are over."""
        for _ in range(50):
            after = self._step(readings, now)
            if after == now:
                return now
            now = after
        raise AssertionError("it does not come to rest")

    def _step(self, readings: Sequence[Reading], now: int) -> int:
        if not any(reading.active for reading in readings):
            if any(reading.value is None for reading in readings):
                return min(self.fallback(now), self.most)
            if self.least == 0:
                return 0
        if now == 0:
            return max(1, self.least)
        return self.wanted(readings, now)

    def wanted(self, readings: Sequence[Reading], now: int) -> int:
        """What the pod autoscaler wants, of ``now`` that run."""
        proposals = []
        for reading in readings:
            value = reading.target * self.fallback(now) if reading.value is None else reading.value
            ratio = value / (reading.target * now)
            proposals.append(now if abs(ratio - 1) <= TOLERANCE else math.ceil(value / reading.target))
        return min(self.most, max(self.least, 1, *proposals))


def down(spec: Object, wanted: Sequence[tuple[float, int]], now: int, at: float) -> int:
    """How many are left at a time, where ``wanted`` are (time, replicas) so far: the window, then the policies."""
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    window = float(behavior["stabilizationWindowSeconds"])
    stable = max(replicas for time, replicas in wanted if time >= at - window)
    (policy,) = behavior["policies"]
    assert policy["type"] == "Percent"
    return min(now, max(stable, now - math.floor(now * policy["value"] / 100)))


Command = Callable[..., Any]


def read(trigger: Object, redis: Command | None, load: Callable[[str], int | None]) -> Reading:
    """Ask as KEDA asks. ``redis``: a command's reply, None where it is away; ``load``: a URL's number, or None."""
    meta = trigger["metadata"]
    if trigger["type"] == "metrics-api":
        assert meta["valueLocation"] == "load"
        return Reading(load(meta["url"]), float(meta["targetValue"]), float(meta["activationTargetValue"]))
    assert trigger["type"] == "redis-streams"
    if "streamLength" in meta:
        return Reading(redis("XLEN", meta["stream"]) if redis else None, float(meta["streamLength"]))
    if "lagCount" in meta:
        return Reading(_lag(redis, meta), float(meta["lagCount"]), float(meta.get("activationLagCount", 0)))
    return Reading(_pending(redis, meta), float(meta["pendingEntriesCount"]))


def _groups(redis: Command | None, stream: str) -> dict[str, Any] | None:
    if redis is None:
        return None
    try:
        groups = redis("XINFO", "GROUPS", stream)
    except ResponseError:  # there is no such stream
        return None
    told = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in groups]
    return {group["name"]: group for group in told}


def _lag(redis: Command | None, meta: Object) -> float | None:
    group = (_groups(redis, meta["stream"]) or {}).get(meta["consumerGroup"])
    if group is None:
        return None
    return -1 if group["lag"] is None else float(group["lag"])


def _pending(redis: Command | None, meta: Object) -> float | None:
    group = (_groups(redis, meta["stream"]) or {}).get(meta["consumerGroup"])
    return None if group is None else float(group["pending"])
