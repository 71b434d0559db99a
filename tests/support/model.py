"""A random world of producers, workers and faults around the scripts, and what must hold in it.

Each schedule is a seed. The world keeps a small reference of every gate (who runs it, its attempts) from the answers
that were really given, also those that the simulated worker does not get to see, and compares. At the end the faults
stop, and whatever was accepted must have ended, once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from runtime.broker.client import Broker
from runtime.broker.delivery import Delivery, Grant, Verdict
from runtime.broker.outcome import Settled
from runtime.broker.runs import Cancelled
from runtime.errors import BrokerError, DecisionError, GroupMissing
from shared_models.result import Decision, RunStatus
from tests.support.hand import DEAD, ERROR, KEYS, RESULTS, STREAM, Hand, Try, make_due, publish_one, raw, sweep

MAX_ATTEMPTS = 3
EVENTS = 5
FAULTS = ("lost", "crash", "pod", "zombie", "drain", "destroy", "due", "cancel", "resend", "block", "delete", "ask")


class Broken(AssertionError):
    """Something did not hold."""


@dataclass
class Task:
    """One delivery in a worker's hands."""

    delivery: Delivery
    event: str
    key: str
    token: str
    phase: str = "begin"  # begin, run, settle
    takeover: str = ""
    attempt: Try | None = None
    outcome: str = ""
    done: bool = False


@dataclass
class Worker:
    """A process. ``asleep``: it has lost its lease and does not know yet."""

    hand: Hand
    tasks: dict[str, Task] = field(default_factory=dict)
    asleep: bool = False
    tokens: int = 0


@dataclass
class Gate:
    """What the reference knows of a key."""

    state: str
    event: str
    token: str
    worker: str
    attempts: int
    executions: int = 0
    """Of this generation, but for those that were given back or that others' deaths ended."""
    over: bool = False
    suspect: bool = False
    pause: str = ""
    decision: str = ""


class World:
    """One schedule."""

    def __init__(self, broker: Broker, seed: int, faults: Iterable[str] = FAULTS) -> None:
        self.broker = broker
        self.draw = random.Random(seed)
        self.faults = {fault for fault in faults if self.draw.random() < 0.5}
        self.workers: list[Worker] = []
        self.names = 0
        self.keys: dict[str, str] = {}
        self.gates: dict[str, Gate] = {}
        self.blame: dict[str, list[str] | None] = {}
        self.lost: set[str] = set()
        self.again: set[str] = set()
        self.sent: dict[str, int] = {}
        self.died: dict[str, int] = {}
        self.clock = 0
        self.calm = False
        self.story: list[str] = []

    def tell(self, *what: object) -> None:
        self.story.append(" ".join(str(part) for part in what))

    def fails(self, why: str) -> None:
        raise Broken(f"{why}\n  " + "\n  ".join(self.story[-40:]))

    # --- the schedule -----------------------------------------------------------------------------------------------

    async def run(self, steps: int = 80) -> None:
        """Some steps with faults, then none until all is quiet, then the last look."""
        await raw(self.broker, "FLUSHALL")
        await self.broker.streams.ensure_group(KEYS)
        for _ in range(2):
            await self.hire()
        for _ in range(steps):
            await self.step()
        await self.calm_down()
        await self.look()

    async def step(self) -> None:
        dice = self.draw.random()
        if dice < 0.12 and len(self.keys) < EVENTS:
            await self.send()
        elif dice < 0.24 and self.faults:
            await self.fault(self.draw.choice(sorted(self.faults)))
        else:
            await self.work(self.draw.choice(self.workers))

    async def calm_down(self) -> None:
        self.tell("--- calm")
        self.calm = True
        self.faults = set()
        for worker in self.workers:
            if worker.asleep:
                await self.wake(worker)
        self.workers = [worker for worker in self.workers if not worker.asleep]
        await self.broker.streams.unblock(KEYS)
        await self.hire()
        for turn in range(400):
            await make_due(self.broker)
            if turn % 3 == 0:
                await sweep(self.broker)
                await self.broker.recovery.audit(KEYS)
            for worker in self.workers:
                if turn % 3 == 0:
                    await self.reconcile(worker)
                for task in list(worker.tasks.values()):
                    await self.advance(worker, task)
                await self.fetch(worker)
            left = [await raw(self.broker, "XLEN", STREAM), await raw(self.broker, "ZCARD", KEYS.due)]
            if not any(left) and not any(worker.tasks for worker in self.workers):
                return
            if turn == 399:
                self.fails(f"never quiet: {await raw(self.broker, 'XPENDING', STREAM, 'headrace', '-', '+', 10)}")

    async def hire(self) -> None:
        self.names += 1
        worker = Worker(await Hand.ready(self.broker, f"w{self.names}"))
        self.workers.append(worker)

    def leave(self, worker: Worker) -> None:
        if worker in self.workers:
            self.workers.remove(worker)

    # --- producers and operators ------------------------------------------------------------------------------------

    async def send(self) -> None:
        event = f"e{len(self.keys)}"
        self.keys[event] = self.draw.choice([event, event, "k"])
        await self.put(event)

    async def put(self, event: str) -> None:
        self.tell("send", event, self.keys[event])
        self.clock += 1
        if self.draw.random() < 0.5:
            entry = await publish_one(self.broker, KEYS, STREAM, (("event_id", event),), event_id=event)
            self.sent.setdefault(entry.entry_id, self.clock)
        else:
            added: bytes = await raw(self.broker, "XADD", STREAM, "*", "event_id", event)
            self.sent[added.decode()] = self.clock

    async def fault(self, what: str) -> None:
        self.tell("!", what)
        worker = self.draw.choice(self.workers)
        match what:
            case "crash":
                await self.crash(worker)
            case "pod":
                self.leave(worker)
                self.blame[worker.hand.name] = None
                await worker.hand.expire()
            case "zombie" if not worker.asleep:
                worker.asleep = True
                self.blame[worker.hand.name] = None
                await worker.hand.expire()
            case "drain":
                await self.drain(worker)
            case "destroy":
                with suppress(BrokerError):  # there may be no stream
                    await raw(self.broker, "XGROUP", "DESTROY", STREAM, "headrace")
            case "due":
                await raw(self.broker, "DEL", KEYS.due)
            case "resend" if self.keys:
                event = self.draw.choice(sorted(self.keys))
                self.again.add(event)
                await self.put(event)
            case "cancel" if self.keys:
                event = self.draw.choice(sorted(self.keys))
                asked = await self.broker.runs.cancel(KEYS, event)
                if asked is Cancelled.CANCELLED:
                    gate = self.gates.get(self.keys[event])
                    if gate and gate.event == event:
                        gate.state = "cancelled"
            case "ask" if self.keys:
                await self.decide(self.draw.choice(sorted(self.keys)))
            case "block":
                await self.broker.streams.block(KEYS, error=ERROR, probe_interval=0.0)
            case "delete" if self.draw.random() < 0.3:
                self.lost |= set(self.keys)
                await raw(self.broker, "DEL", STREAM)
        if not self.workers or all(w.asleep for w in self.workers):
            await self.hire()

    async def decide(self, event: str) -> None:
        """A person decides what an event asks, if it does."""
        gate, action = self.gates.get(self.keys[event]), self.draw.choice(["approve", "reject"])
        try:
            await self.broker.pauses.resume(KEYS, event, Decision(action_id=action))
        except DecisionError:
            return
        self.tell("decide", event, action)
        if gate is None or gate.event != event or not gate.pause or gate.decision not in ("", action):
            self.fails(f"a decision {action} was taken for {event}: {gate}")
        elif not gate.decision and gate.state != "waiting":
            self.fails(f"a decision was taken for {event}, which does not wait: {gate}")
        elif not gate.decision:
            gate.decision, gate.state = action, "queued"

    async def crash(self, worker: Worker) -> None:
        """Seen by its supervisor, which may know whom to blame."""
        self.leave(worker)
        running = [task.token for task in worker.tasks.values() if task.phase != "begin"]
        blame = self.draw.choice([None, [], running[:1]])
        self.blame[worker.hand.name] = blame
        try:
            await worker.hand.die(blame)
        except GroupMissing:
            await self.broker.streams.ensure_group(KEYS)

    async def drain(self, worker: Worker) -> None:
        self.leave(worker)
        if worker.asleep:
            return
        for task in list(worker.tasks.values()):
            if task.phase == "run":
                task.phase, task.outcome = "settle", "release"
            if task.phase == "settle":
                await self.settle(worker, task, lossy=False)
        self.blame[worker.hand.name] = []
        await self.broker.leases.leave(KEYS, worker=worker.hand.name)

    # --- workers ----------------------------------------------------------------------------------------------------

    async def work(self, worker: Worker) -> None:
        """One thing that a worker's loops may do next."""
        if worker.asleep:
            # Long enough for the others to take over what it had.
            await (self.wake(worker) if self.draw.random() < 0.08 else self.sweep())
            return
        dice = self.draw.random()
        if dice < 0.04:
            await self.reconcile(worker)
        elif dice < 0.08:
            await self.sweep()
        elif dice < 0.12:
            await make_due(self.broker)
        elif worker.tasks and dice < 0.8:
            await self.advance(worker, self.draw.choice(list(worker.tasks.values())))
        else:
            await self.fetch(worker)

    async def fetch(self, worker: Worker) -> None:
        try:
            found = await worker.hand.look(self.draw.randrange(1, 4), probe=True)  # also of a route that is blocked
        except GroupMissing:
            await self.broker.streams.ensure_group(KEYS)
            return
        if not self.loses():
            for delivery in found.deliveries:
                self.take(worker, delivery)
        if found.blocked and self.draw.random() < 0.5:
            await self.broker.streams.unblock(KEYS)

    def loses(self) -> bool:
        return "lost" in self.faults and self.draw.random() < 0.15

    def take(self, worker: Worker, delivery: Delivery) -> None:
        if delivery.entry_id not in worker.tasks:
            event = dict(delivery.fields)[b"event_id"].decode()
            worker.tasks[delivery.entry_id] = Task(delivery, event, self.keys[event], self.token(worker))

    def token(self, worker: Worker) -> str:
        worker.tokens += 1
        return f"{worker.hand.name}.{worker.tokens}"

    async def reconcile(self, worker: Worker) -> None:
        try:
            ids = await self.broker.reader.pending(KEYS, worker=worker.hand.name)
            for delivery in await self.broker.reader.read_ids(KEYS, [i for i in ids if i not in worker.tasks]):
                self.take(worker, delivery)
        except GroupMissing:
            await self.broker.streams.ensure_group(KEYS)

    async def sweep(self) -> None:
        try:
            await sweep(self.broker)
        except GroupMissing:
            await self.broker.streams.ensure_group(KEYS)

    async def wake(self, worker: Worker) -> None:
        """It was stopped for longer than its lease; what it had in hand it may still try to write."""
        await self.sweep()
        self.leave(worker)
        for task in list(worker.tasks.values()):
            if task.phase == "begin":
                attempt = await worker.hand.begin(task.delivery, task.event, key=task.key, token=task.token)
                if attempt.grant.verdict is not Verdict.NO_LEASE:
                    self.fails(f"a zombie began: {attempt.grant}")
            else:
                task.phase, task.outcome = "settle", task.outcome or self.draw.choice(["complete", "retry"])
                await self.settle(worker, task, lossy=False)
        worker.tasks.clear()
        if not self.workers:
            await self.hire()

    async def advance(self, worker: Worker, task: Task) -> None:
        if task.phase == "begin":
            await self.begin(worker, task)
        elif task.phase == "run":
            attempt = task.attempt
            assert attempt is not None
            last = attempt.grant.attempts >= MAX_ATTEMPTS
            asks = ["ask", "ask"] if "ask" in self.faults and not self.calm else []
            task.outcome = self.draw.choice(["complete", "complete", "bury" if last else "retry", "release", *asks])
            if attempt.grant.verdict is Verdict.OVER:
                task.outcome = "bury"
            task.phase = "settle"
        else:
            await self.settle(worker, task)

    async def begin(self, worker: Worker, task: Task) -> None:
        try:
            attempt = await worker.hand.begin(
                task.delivery,
                task.event,
                key=task.key,
                token=task.token,
                takeover=task.takeover,
                probe=task.delivery.probe,
                max_attempts=MAX_ATTEMPTS,
            )
        except GroupMissing:
            await self.broker.streams.ensure_group(KEYS)
            worker.tasks.pop(task.delivery.entry_id)
            return
        grant = attempt.grant
        self.tell(worker.hand.name, "begin", task.event, task.token, grant.verdict.name, grant.attempts)
        if grant.verdict in (Verdict.RUN, Verdict.OVER):
            self.granted(worker, task, attempt)
        elif grant.verdict is Verdict.CANCELLED:
            self.gates[task.key].state = "cancelled"
        if self.loses():
            return
        mine = [t.token for t in worker.tasks.values()]
        if grant.verdict in (Verdict.RUN, Verdict.OVER):
            task.phase, task.attempt = "run", attempt
        elif grant.verdict is Verdict.WAIT and grant.holder == worker.hand.name and grant.token not in mine:
            task.takeover = grant.token
        elif grant.verdict is not Verdict.NO_LEASE:
            worker.tasks.pop(task.delivery.entry_id)

    def granted(self, worker: Worker, task: Task, attempt: Try) -> None:
        """Compare with the reference: nobody else runs it, and its attempts are right."""
        gate, grant = self.gates.get(task.key), attempt.grant
        if gate and gate.state == "running" and gate.token == task.token:
            if (grant.attempts, *asked(grant)) != (gate.attempts, gate.pause, gate.decision):
                self.fails("a repeated begin was answered otherwise")
            return
        if grant.verdict is Verdict.RUN:
            for other in self.workers:
                for task_ in other.tasks.values():
                    if not other.asleep and task_.key == task.key and task_.phase == "run" and task_ is not task:
                        self.fails(f"I3: {task.token} and {task_.token} run {task.key} at once")
        fresh = gate is None or gate.event != task.event or gate.state in ("completed", "dead", "cancelled")
        shared = gate is not None and gate.state == "dead" and gate.event == task.event and not self.lost
        if shared and self.sent[task.delivery.entry_id] < self.died[task.event]:
            self.fails(f"C15: {task.event} was sent before it died, and runs again")
        before, suspect = (0, False) if fresh or gate is None else (gate.attempts, gate.suspect)
        executions = 0 if fresh or gate is None else gate.executions
        if not fresh and gate is not None and gate.state == "running" and not gate.over:
            blame = self.blame.get(gate.worker)
            if blame == []:  # asked to end: it costs nothing, and counts for nothing
                before, executions = before - 1, executions - 1
            elif (blame is not None and gate.token not in blame) or (not suspect and gate.worker != worker.hand.name):
                before, suspect = before - 1, True
        over = before >= MAX_ATTEMPTS
        expected = (Verdict.OVER, before) if over else (Verdict.RUN, before + 1)
        if (grant.verdict, grant.attempts) != expected and task.event not in self.lost:
            self.fails(f"attempts of {task.event}: {grant.verdict.name} {grant.attempts}, expected {expected}; {gate}")
        pause = ("", "") if fresh or gate is None else (gate.pause, gate.decision)
        if asked(grant) != pause and task.event not in self.lost:
            self.fails(f"{task.event} goes on from {asked(grant)}, expected {pause}")
        executions += not over
        if executions > MAX_ATTEMPTS + 1:
            self.fails(f"I4: {task.event} is executed for the {executions}th time")
        self.gates[task.key] = Gate(
            "running",
            task.event,
            task.token,
            worker.hand.name,
            grant.attempts,
            executions,
            over,
            suspect,
            *asked(grant),
        )

    async def settle(self, worker: Worker, task: Task, *, lossy: bool = True) -> None:
        attempt, hand = task.attempt, worker.hand
        assert attempt is not None
        delay = self.draw.choice([0.0, 100.0])
        match task.outcome:
            case "complete":
                settled = await hand.complete(attempt)
            case "retry":
                settled = await hand.retry(attempt, delay)
            case "release":
                settled = await hand.release(attempt, delay)
            case "ask":
                settled = await hand.suspend(attempt, f"q:{task.token}", 100.0)
            case _:
                settled = await hand.bury(attempt)
        self.tell(hand.name, task.outcome, task.event, task.token, settled.name)
        gate = self.gates.get(task.key)
        if settled in (Settled.DONE, Settled.CANCELLED):
            if gate is None or gate.token != task.token or gate.state != "running":
                self.fails(f"the fence let {task.token} through: {gate}")
            else:
                self.settled(task, gate, settled)
                task.done = True
        elif task.done and settled is not Settled.ALREADY:
            self.fails(f"C20: {task.token} had settled, and is told {settled.name}")
        if lossy and self.loses():
            return
        if settled is Settled.ENTRY_GONE:
            task.outcome = "bury"
            return
        worker.tasks.pop(task.delivery.entry_id, None)

    def settled(self, task: Task, gate: Gate, settled: Settled) -> None:
        if settled is Settled.CANCELLED:
            gate.state = "cancelled"
            return
        gate.state = {
            "complete": "completed",
            "retry": "delayed",
            "release": "queued",
            "bury": "dead",
            "ask": "waiting",
        }[task.outcome]
        if task.outcome in ("release", "ask") and not gate.over:
            gate.attempts, gate.executions = gate.attempts - 1, gate.executions - 1
        if task.outcome == "ask":
            gate.pause, gate.decision = f"q:{task.token}", ""
        if task.outcome == "bury":
            self.clock += 1
            self.died[task.event] = self.clock
            if gate.attempts < MAX_ATTEMPTS and not self.lost:
                self.fails(f"I5: {task.event} died after {gate.attempts} charged attempts")

    # --- the last look ----------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """What must hold when all is quiet."""
        for name, kind in (("pending", "XPENDING"), ("due", "ZCARD")):
            reply = await raw(self.broker, *((kind, STREAM, "headrace") if kind == "XPENDING" else (kind, KEYS.due)))
            if (reply[0] if isinstance(reply, list) else reply) != 0:
                self.fails(f"{name} is not empty: {reply}")
        results = Counter(e[b"event_id"].decode().rstrip(">") for e in await entries_of(self.broker, RESULTS))
        letters = Counter(e[b"dl_event_id"].decode() for e in await entries_of(self.broker, DEAD))
        for event in self.keys:
            record = await self.broker.runs.get(KEYS, event)
            ends = results[event] + letters[event]
            if results[event] > 1 and event not in self.lost:
                self.fails(f"I2: {event} has {results[event]} results")
            if event in self.lost and record is None:
                continue
            status = record.status if record else None
            if not (record and record.status.final) and event not in self.lost:
                self.fails(f"I1: {event} has not ended: {status}")
            if ends > 1 and event not in self.again and event not in self.lost:
                self.fails(f"I1: {event} has {results[event]} results and {letters[event]} dead letters")
            if status is RunStatus.COMPLETED and record and not record.duplicate_of and results[event] != 1:
                self.fails(f"{event} is completed with {results[event]} results")
            if status is RunStatus.DEAD_LETTERED and record and not record.duplicate_of and not letters[event]:
                self.fails(f"{event} is dead-lettered without a dead letter")


def asked(grant: Grant) -> tuple[str, str]:
    """What a run that waited was asked, and the answer."""
    return grant.pause, Decision.model_validate_json(grant.decision).action_id if grant.decision else ""


async def entries_of(broker: Broker, stream: str) -> list[dict[bytes, bytes]]:
    found = await raw(broker, "XRANGE", stream, "-", "+")
    return [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in found]


async def explore(broker: Broker, seeds: range, faults: Iterable[str] = FAULTS) -> None:
    """Run these schedules; the first that breaks is told with its seed."""
    for seed in seeds:
        try:
            await World(broker, seed, faults).run()
        except (Broken, BrokerError) as error:
            raise Broken(f"seed {seed}: {error}") from error
