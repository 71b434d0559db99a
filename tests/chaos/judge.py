"""The verdict, from outside: result and dead-letter streams, run records, and the ledger that the runs wrote.

I1  every event that was sent has exactly one terminal record in its epoch
I2  no result is published twice in an epoch
I3  where executions of an event overlap, one of the workers had lost its lease by then: the one that was given the
    event first. Its own execution may have begun later, if it was stopped in between
I4  at most max_attempts failures and max_attempts + 1 executions, not counting those that others' deaths ended
I5  what only succeeds is charged for its own deaths alone: none for the first, none for a drain
I6  the calm route's events complete
I7, I8  at the end nothing is left: no entry, no pending one, no due time, no gate that is not ended, no consumer
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.broker.keys import RouteKeys
from shared_models.result import RunStatus
from tests.chaos.events import ROUTES, Event
from tests.chaos.world import LEASE, MAX_ATTEMPTS, Epoch, World

CLOCKS = 0.03
"""Seconds that the server's clock and the ledger's may differ."""

LATE = 15.0
"""Seconds after a run that its outcome may still be on its way to Redis."""


@dataclass(slots=True)
class Execution:
    """One execution as the ledger tells it. ``closed`` is infinite where it died."""

    event: str
    pid: int
    began: float
    closed: float = float("inf")
    how: str = "died"


@dataclass
class Verdict:
    """Figures, and what was broken."""

    figures: dict[str, Any] = field(default_factory=dict)
    broken: list[tuple[str, str]] = field(default_factory=list)
    """Event id (or empty) and what is wrong with it."""


class Judge:
    """Reads everything once the run is over."""

    def __init__(self, world: World, events: Iterable[Event]) -> None:
        self._world = world
        self._events = {event.id: event for event in events}
        self._executions = _executions(world.ledger())
        self._names: dict[int, str] = {}
        self._pods: dict[int, str] = {}
        for pod in world.pods:
            for pid, name in pod.names.items():
                self._names[pid], self._pods[pid] = name, pod.name
        self._deaths = {name: at for epoch in world.epochs for name, at in epoch.deaths.items()}
        self._ended = world.epochs[:-1]
        self._flushes = [epoch.ended for epoch in self._ended]
        self._sent = world.producer.sent if world.producer is not None else {}
        self.verdict = Verdict()

    def judge(self) -> Verdict:
        """All of it."""
        self._terminal_records()
        self._overlaps()
        self._attempts()
        self._records()
        self._recovery()
        return self.verdict

    def _breach(self, event: str, what: str) -> None:
        self.verdict.broken.append((event, what))

    # --- I1, I2, I6 -------------------------------------------------------------------------------------------------

    def _terminal_records(self) -> None:
        ended: Counter[str] = Counter()
        twice = letters = repeated = innocent = 0
        for number, epoch in enumerate(self._world.epochs):
            results = Counter(event for events in epoch.results.values() for event in events)
            dead = Counter(event for told in epoch.letters.values() for event, _ in told)
            codes = {event: code for told in epoch.letters.values() for event, code in told}
            for event, count in results.items():
                if count > 1:
                    twice += 1
                    self._breach(event, f"{count} results in epoch {number}")
                if event in dead:
                    self._breach(event, f"completed and dead-lettered in epoch {number}")
                if (known := self._events.get(event)) is not None and not known.succeeds:
                    self._breach(event, f"an event that {known.kind} has completed")
            for event, count in dead.items():
                letters += 1
                if count > 1:
                    self._breach(event, f"{count} dead letters in epoch {number}")
                known = self._events.get(event)
                if known is not None and known.succeeds:
                    innocent += 1
                    self._innocent(known, codes[event])
            repeated += sum(event in ended for event in results.keys() | dead.keys())
            ended.update(results.keys() | dead.keys())
        lost = [event for event in self._events if event not in ended]
        for event in lost:
            self._breach(event, "lost: neither completed nor dead-lettered")
        self.verdict.figures |= {
            "events": len(self._events),
            "completed": sum(len(told) for epoch in self._world.epochs for told in epoch.results.values()),
            "dead-lettered": letters,
            "lost": len(lost),
            "duplicated results": twice,
            "ended again after a FLUSHALL": repeated,
            "killed too often": innocent,
        }

    def _innocent(self, event: Event, code: str) -> None:
        """Chaos may kill an event each time it runs; then it is taken for a killer."""
        others = sum(self._others_doing(execution) for execution in self._executions[event.id])
        needed = MAX_ATTEMPTS - (event.kind == "fails_first")
        if code not in ("worker_died", "asked") or others < needed or event.route == "calm":
            self._breach(event.id, f"an innocent event ({event.kind}) was dead-lettered: {code}, {others} deaths")

    # --- I3 ---------------------------------------------------------------------------------------------------------

    def _overlaps(self) -> None:
        double = overlaps = unknown = 0
        for event, executions in self._executions.items():
            for first, second in _pairs(executions):
                if first.closed <= second.began:
                    continue
                if not self._held(first, second.began):
                    overlaps += first.closed != float("inf")
                elif self._woke_late(second) or self._flushed_between(first, second):
                    overlaps += 1
                elif first.pid not in self._names:
                    unknown += 1
                else:
                    double += 1
                    self._breach(
                        event,
                        f"executed by {first.pid} ({self._names[first.pid]}) from {first.began:.3f} to "
                        f"{first.closed:.3f}, and by {second.pid} from {second.began:.3f}; the first was declared "
                        f"dead at {self._died(first)}",
                    )
        self.verdict.figures |= {
            "double executions by lease holders": double,
            "overlaps with a worker that had lost its lease": overlaps,
            "overlaps that could not be judged": unknown,
        }

    def _who(self, execution: Execution) -> str:
        event = self._events.get(execution.event)
        return f"{event.route if event else None}/{self._names.get(execution.pid)}"

    def _died(self, execution: Execution) -> float | None:
        who = self._who(execution)
        times = [-at for _, at in self._world.leases.get(who, []) if at < 0]
        times += [self._deaths[who]] if who in self._deaths else []
        return min(times, default=None)

    def _held(self, execution: Execution, at: float) -> bool:
        """Whether the execution's worker held its lease at a time."""
        died = self._died(execution)
        if died is not None and died <= at + CLOCKS:
            return False
        seen = [end for noted, end in self._world.leases.get(self._who(execution), []) if noted <= at]
        return not seen or seen[-1] > at

    def _woke_late(self, execution: Execution) -> bool:
        """Whether its worker had lost its lease when it began: stopped after it was permitted, it began as it woke."""
        return not self._held(execution, execution.began - CLOCKS)  # for sure: not by the clocks' difference

    def _flushed_between(self, first: Execution, second: Execution) -> bool:
        return any(self._before(first, end) and end.ended <= second.began for end in self._ended)

    def _flushed(self, since: float, until: float) -> bool:
        return any(since <= flush <= until for flush in self._flushes)

    def _before(self, execution: Execution, epoch: Epoch) -> bool:
        """Whether it was begun before a FLUSHALL, though its first line may have come later.

        The event was not sent again in between: there was nothing to begin.
        """
        sent = self._sent.get(execution.event, ())
        return execution.began <= epoch.ended or not any(epoch.asked <= at <= execution.began for at in sent)

    # --- I4 ---------------------------------------------------------------------------------------------------------

    def _attempts(self) -> None:
        over = most = 0
        for event, executions in self._executions.items():
            if event not in self._events:
                continue
            by_epoch: dict[int, list[Execution]] = defaultdict(list)
            for execution in executions:
                by_epoch[bisect_right(self._flushes, execution.began)].append(execution)
            for epoch, ran in by_epoch.items():
                ended = self._ended[:epoch]
                own = [x for x in ran if not self._others_doing(x) and not (ended and self._before(x, ended[-1]))]
                failed = sum(x.how == "failed" for x in own)
                most = max(most, len(ran))
                if len(own) > MAX_ATTEMPTS + 1 or failed > MAX_ATTEMPTS:
                    over += 1
                    self._breach(event, f"{len(own)} executions of its own, {failed} failed, in epoch {epoch}")
        self.verdict.figures |= {
            "executions": sum(len(executions) for executions in self._executions.values()),
            "attempts over the limit": over,
            "most executions of one event": most,
        }

    def _others_doing(self, execution: Execution) -> bool:
        """Whether its worker died or was told to end before its outcome was written, not by the event's own doing."""
        died = self._died(execution)
        cut = died is not None and execution.began - CLOCKS <= died <= execution.closed + LATE
        event = self._events.get(execution.event)
        if event is None or event.kind not in ("exits", "blocks"):
            return cut
        pod = self._pods.get(execution.pid)
        return cut and any(
            (harm.pid == execution.pid or (harm.pid is None and harm.pod == pod))
            and harm.ended > execution.began - LEASE
            and harm.began < execution.began + LATE
            for harm in self._world.harms
        )

    # --- I5, and the records --------------------------------------------------------------------------------------

    def _records(self) -> None:
        last = self._world.epochs[-1]
        done = {event for events in last.results.values() for event in events}
        dead = {event for letters in last.letters.values() for event, _ in letters}
        charged = 0
        with self._world.client() as client:
            for ids in _pages([*done, *dead], 500):
                pipe = client.pipeline(transaction=False)
                known = [self._events[event] for event in ids if event in self._events]
                for event in known:
                    pipe.hmget(event.keys.run(event.id), "status", "attempts")
                for event, (status, attempts) in zip(known, pipe.execute(), strict=True):
                    expected = RunStatus.COMPLETED if event.id in done else RunStatus.DEAD_LETTERED
                    if status != expected:
                        self._breach(event.id, f"its record says {status}, the streams say {expected}")
                    if event.kind in ("ok", "slow") and event.id in done and int(attempts or 0) > 1:
                        begun = sum(fields["type"] == "started" for _, fields in _feed(client, event.keys, event.id))
                        if int(attempts) > max(1, begun - 1):
                            charged += 1
                            self._breach(event.id, f"charged {attempts} attempts, begun {begun} times")
        self.verdict.figures["innocents charged"] = charged

    # --- recovery ---------------------------------------------------------------------------------------------------

    def _recovery(self) -> None:
        for kind in ("child", "worker"):
            first, each = [], []
            for told, pid, at in self._world.kills:
                if told != kind:
                    continue
                waits = list(self._waits(pid, at))
                each += waits
                first += [min(waits)] if waits else []
            told = f"{len(first)} kills during runs"
            if first:
                told += f"; next start p50 {_quantile(first, 0.5):.2f} s, p99 {_quantile(first, 0.99):.2f} s"
                told += f"; each event p50 {_quantile(each, 0.5):.2f} s, p99 {_quantile(each, 0.99):.2f} s"
            self.verdict.figures[f"recovery from a killed {kind}"] = told

    def _waits(self, pid: int, at: float) -> Iterable[float]:
        for executions in self._executions.values():
            if any(x.pid == pid and x.began <= at and x.how == "died" for x in executions):
                again = [x.began for x in executions if x.pid != pid and x.began > at]
                if again and not self._flushed(at, min(again)):
                    yield min(again) - at

    # --- the story --------------------------------------------------------------------------------------------------

    def story(self, event: str) -> str:
        """Everything that is known of one event."""
        known = self._events.get(event)
        lines = [f"--- {event}" + (f" ({known.kind}, {known.route})" if known else "")]
        lines += [f"ledger {x.began:.3f} - {x.closed:.3f} pid {x.pid} {self._names.get(x.pid)} {x.how}, declared dead "
                  f"{self._died(x)}" for x in self._executions[event]]  # fmt: skip
        if known is not None:
            keys = known.keys
            with self._world.client() as client:
                run = client.hgetall(keys.run(event))
                entry = run.get("entry_id", "0-1")
                lines.append(f"record {json.dumps({k: v for k, v in run.items() if k != 'result'})}")
                lines.append(f"gate {json.dumps(client.hgetall(keys.gate(event)))}")
                lines += [f"feed {line_id} {fields}" for line_id, fields in _feed(client, keys, event)]
                lines.append(
                    f"due {client.zscore(keys.due, entry)}; in the stream {client.xrange(keys.stream, entry, entry)}"
                )
                if client.exists(keys.stream):
                    lines.append(f"pending {client.xpending_range(keys.stream, keys.group, entry, entry, 1)}")
        for pod in self._world.pods:
            lines += [f"log {pod.name} {json.dumps(line)}" for line in pod.lines(event)]
        began = min((x.began for x in self._executions[event]), default=0.0)
        pods = {self._pods.get(x.pid) for x in self._executions[event]} | {None}
        lines += [f"harm {harm}" for harm in self._world.harms if harm.ended > began - 5 and harm.pod in pods]
        return "\n".join(lines)


def _feed(client: Any, keys: RouteKeys, event: str) -> list[tuple[str, dict[str, str]]]:
    """What a run's feed tells, from its record if it has ended."""
    if folded := client.hget(keys.run(event), "feed"):
        return [(line_id, dict(zip(flat[::2], flat[1::2], strict=True))) for line_id, flat in json.loads(folded)]
    return list(client.xrange(keys.feed(event)))


def at_rest(world: World) -> list[str]:
    """What is left in Redis though nothing is to be done any more. Empty: all is well."""
    left = []
    live = sum(len(seat.pod.children) for seat in world.seats)
    with world.client() as client:
        for keys in ROUTES.values():
            if length := client.xlen(keys.stream):
                left.append(f"{keys.stream} holds {length} entries: {client.xrange(keys.stream, count=3)}")
            if due := client.zcard(keys.due):
                left.append(f"{keys.due} holds {due}: {client.zrange(keys.due, 0, 2, withscores=True)}")
            if not client.exists(keys.stream):
                continue
            if pending := client.xpending(keys.stream, keys.group)["pending"]:
                left.append(f"{keys.stream} has {pending} pending")
            consumers = client.xinfo_consumers(keys.stream, keys.group)
            if len(consumers) > live + 2:
                left.append(f"{keys.stream} has {len(consumers)} consumers for {live} processes")
    return left


def gates_at_rest(world: World) -> list[str]:
    """Gates that have not ended."""
    left = []
    with world.client() as client:
        for keys in ROUTES.values():
            for names in _pages(client.scan_iter(f"{keys.prefix}gate:*", count=1000), 500):
                pipe = client.pipeline(transaction=False)
                for name in names:
                    pipe.hget(name, "state")
                states = zip(names, pipe.execute(), strict=True)
                left += [f"{name} is {state}" for name, state in states if state not in ("completed", "dead")]
    return left


def _executions(ledger: Sequence[dict[str, Any]]) -> dict[str, list[Execution]]:
    found: dict[str, list[Execution]] = defaultdict(list)
    for line in ledger:
        ran = found[line["event"]]
        if line["what"] == "start":
            ran.append(Execution(line["event"], line["pid"], line["at"]))
            continue
        for execution in reversed(ran):
            if execution.pid == line["pid"] and execution.how == "died":
                execution.closed, execution.how = line["at"], line["what"]
                break
    for ran in found.values():
        ran.sort(key=lambda execution: execution.began)
    return found


def _pairs(executions: Sequence[Execution]) -> Iterable[tuple[Execution, Execution]]:
    for number, first in enumerate(executions):
        for second in executions[number + 1 :]:
            yield first, second


def _pages(items: Iterable[Any], size: int) -> Iterable[list[Any]]:
    page: list[Any] = []
    for item in items:
        page.append(item)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
