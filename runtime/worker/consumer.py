"""Reading: free slots, then that many entries, then a processor for each. Never more than can run now.

A fetch from a stream is one script that hands out due entries first and new ones for the rest. When nothing is left
to fetch, one group-free blocking read over all streams waits for news; it hands out nothing, so it can never take more
than there are slots, and a flood on one stream cannot starve another: each look shares the free slots over the streams.
What makes no noise (an entry that another made due, a group or a lease that is gone) is seen by a glance at all quiet
streams at once, so that idle ones cost next to nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence, Set

import structlog

from runtime.broker.client import Broker
from runtime.broker.delivery import Delivery, Fetched
from runtime.broker.reader import FetchRequest
from runtime.errors import BrokerError, GroupMissing, LeaseLost
from runtime.settings import Settings
from runtime.worker.board import Slot
from runtime.worker.flights import Flight, Flights
from runtime.worker.lanes import ActiveRoute, Lane, Lanes
from runtime.worker.lease import Lease
from runtime.worker.limiter import Limiter
from runtime.worker.news import News
from runtime.worker.processor import Processor
from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")

FULL_RECONCILE = 10
"""Reconciliations of which one looks at every lane, and not only where a reply may have been lost."""

MAX_BACKOFF = 2.0
"""Seconds between looks while Redis is away."""


class Consumer:
    """Feeds the processor of one worker identity from all of its lanes."""

    def __init__(
        self,
        broker: Broker,
        *,
        lanes: Lanes,
        limiter: Limiter,
        flights: Flights,
        processor: Processor,
        lease: Lease,
        settings: Settings,
        worker: str,
        slot: Slot | None = None,
    ) -> None:
        self._broker = broker
        self._lanes = lanes
        self._limiter = limiter
        self._flights = flights
        self._processor = processor
        self._lease = lease
        self._settings = settings.worker
        self._worker = worker
        self._slot = slot
        self._stopping = False
        self._kick = asyncio.Event()
        self._news = News(broker.reader)
        self._next_glance = 0.0
        self._next_reconcile = 0.0
        self._reconciled = 0

    def kick(self) -> None:
        """Look again now: a lane has changed, or something is due."""
        self._kick.set()

    async def run_one(self, lane: Lane, entry_id: str) -> None:
        """Take one parked entry, whenever it is due, and run it; nothing where another has it by now."""
        for delivery in await self._broker.recovery.adopt(lane.keys, worker=self._worker, ids=[entry_id]):
            self._start(lane, delivery)
        await self._flights.empty(None)

    def stop(self) -> None:
        """Read nothing more."""
        self._stopping = True
        self._kick.set()

    async def run(self) -> None:
        """Until ``stop``."""
        try:
            while not self._stopping:
                await self._reconcile_if_time()
                await self._glance_if_time()
                if not await self._fetch_round():
                    await self._wait()
        finally:
            await self._news.stop()

    # --- fetch ------------------------------------------------------------------------------------------------------

    async def _fetch_round(self) -> bool:
        """One look at every lane that may have something, as far as slots go. False if there was none to look at."""
        now = time.monotonic()
        wanted = self._requests(now)
        if not wanted:
            return False
        self._kick.clear()
        requests = [self._request(lane, n) for lane, n in wanted]
        try:
            answers = await self._broker.reader.fetch(requests)
        except HeadraceError as error:
            for lane, _ in wanted:
                self._lane_away(lane, error)
            return True
        if self._slot is not None:
            self._slot.polled()
        refused = []
        for (lane, _), answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Fetched):
                await self._accept(lane, answer)
            else:
                refused.append((lane, answer))
        await self._refused(refused)
        return True

    def _requests(self, now: float) -> list[tuple[Lane, int]]:
        ready = [lane for lane in self._lanes.rotated() if lane.due(now) and lane.readable and self._room(lane)]
        free = self._limiter.free
        wanted: list[tuple[Lane, int]] = []
        for left, lane in zip(range(len(ready), 0, -1), ready, strict=True):
            n = min(self._room(lane), max(1, free // left))
            if n <= 0 or free <= 0:
                break
            wanted.append((lane, n))
            free -= n
        return wanted

    def _room(self, lane: Lane) -> int:
        active = lane.active
        return self._limiter.free_for(lane.name, active.route.spec.slots) if active else 0

    def _request(self, lane: Lane, n: int) -> FetchRequest:
        return FetchRequest(
            keys=lane.keys,
            worker=self._worker,
            n=n,
            probe=lane.blocked,
            probe_interval=self._settings.probe_interval,
        )

    async def _accept(self, lane: Lane, fetched: Fetched) -> None:
        if not lane.readable:  # it was closed, or what its flow needs has gone, while Redis was asked
            await self._give_back(lane, [delivery.entry_id for delivery in fetched.deliveries])
            return
        now, lane.failures = time.monotonic(), 0
        lane.tail, lane.hungry, lane.blocked = fetched.tail, fetched.more and not fetched.blocked, fetched.blocked
        # Only a fetch shows Redis that this consumer is there. Should its lease be lost while it runs something, it
        # must not have been idle for long: its entries would be handed on.
        lane.next_look = now + (self._settings.poll_interval if fetched.blocked else self._settings.reclaim_idle / 4)
        if fetched.due_in is not None and not fetched.blocked:
            self._expect(lane, fetched.due_in)
        for delivery in fetched.deliveries:
            self._start(lane, delivery)

    def _expect(self, lane: Lane, due_in: int) -> None:
        """Fetch when an entry is due, in so many ms."""
        lane.look_at(time.monotonic() + due_in / 1000)

    async def condemn(self, lane: Lane, entry_ids: Sequence[str]) -> None:
        """Dead-letter parked entries that killed one worker after the other before they even began."""
        for delivery in await self._broker.recovery.adopt(lane.keys, worker=self._worker, ids=entry_ids):
            self._start(lane, delivery, condemned=True)

    def _start(self, lane: Lane, delivery: Delivery, *, condemned: bool = False) -> None:
        active = lane.active
        if delivery.entry_id in lane.flights or active is None:
            return
        flight = Flight(lane, delivery.entry_id, condemned=condemned)
        lane.flights[delivery.entry_id] = ""
        lane.unsure = True
        self._limiter.take(lane.name)
        if self._slot is not None:
            self._slot.picked()
            self._slot.occupied(self._limiter.used)
        name = f"delivery:{lane.keys.stream}:{delivery.entry_id}"
        task = asyncio.create_task(self._fly(flight, delivery, active), name=name)
        self._flights.add(task, flight)

    async def _fly(self, flight: Flight, delivery: Delivery, active: ActiveRoute) -> None:
        lane = flight.lane
        try:
            await self._processor.process(flight, delivery, active)
            self._limiter.crashed = 0
        except Exception:
            self._limiter.crashed += 1
            raise
        finally:
            lane.flights.pop(flight.entry_id, None)
            if flight.left is None or flight.left.done():
                self._land(lane)
            else:
                self._limiter.stuck += 1
                flight.left.add_done_callback(lambda _: self._land(lane, stuck=True))

    def _land(self, lane: Lane, *, stuck: bool = False) -> None:
        """A slot is free again."""
        self._limiter.stuck -= stuck
        self._limiter.give_back(lane.name)
        if self._slot is not None:
            self._slot.occupied(self._limiter.used)
        self.kick()

    # --- trouble ----------------------------------------------------------------------------------------------------

    async def _refused(self, refused: Sequence[tuple[Lane, BrokerError]]) -> None:
        """Mend what can be mended of lanes that gave an error, together: it is all of them where Redis was emptied."""
        for lane, error in refused:
            lane.unsure = True
            if not isinstance(error, GroupMissing | LeaseLost):
                self._lane_away(lane, error)
        await asyncio.gather(*(self._make_group(lane) for lane, error in refused if isinstance(error, GroupMissing)))
        # Redis has lost the lease (it was emptied, or this process was away): only a renewal can bring it back.
        if any(isinstance(error, LeaseLost) for _, error in refused) and not await self._lease.renew_now():
            await self._pause(0.2)

    async def _make_group(self, lane: Lane) -> None:
        try:
            await self._broker.streams.ensure_group(lane.keys)
        except HeadraceError as failed:
            self._lane_away(lane, failed)
        else:
            log.warning("group.recreated", route=lane.name, stream=lane.keys.stream, group=lane.keys.group)
            lane.hungry, lane.tail = True, "0-0"

    def _lane_away(self, lane: Lane, error: HeadraceError) -> None:
        """Redis does not answer for this lane: wait before it is asked again. Of a cluster, others may answer."""
        if not any(other.failures for other in self._lanes):
            log.warning("redis.failed", step="look", route=lane.name, code=error.code, error=error.message)
        lane.failures += 1
        lane.unsure, lane.hungry = True, False
        lane.next_look = time.monotonic() + min(MAX_BACKOFF, 0.05 * 2 ** min(lane.failures, 8))

    async def _pause(self, seconds: float) -> None:
        if not self._stopping:
            await asyncio.sleep(seconds)

    # --- quiet lanes ------------------------------------------------------------------------------------------------

    async def _glance_if_time(self) -> None:
        """See whether any quiet lane has something after all: whoever parks, destroys or unblocks says nothing."""
        now = time.monotonic()
        if now < self._next_glance or self._limiter.free <= 0:  # without a free slot: as soon as there is one
            return
        self._next_glance = now + self._settings.poll_interval
        quiet = [lane for lane in self._lanes if lane.quiet]
        if not quiet:
            return
        seen: Sequence[int | BrokerError | None]
        try:
            seen = await self._broker.reader.glance([(lane.keys, lane.tail) for lane in quiet], worker=self._worker)
        except BrokerError as error:
            seen = [error] * len(quiet)
        await self._refused(
            [(lane, one) for lane, one in zip(quiet, seen, strict=True) if isinstance(one, BrokerError)]
        )
        for lane, one in zip(quiet, seen, strict=True):
            if isinstance(one, BrokerError):
                continue
            if one == 0:
                lane.hungry = True
            elif one is not None:
                self._expect(lane, one)
        if self._slot is not None and not all(isinstance(one, BrokerError) for one in seen):
            self._slot.polled()

    # --- waiting ----------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Until there is something to fetch: news on a stream, a due time, a free slot, a change of the lanes."""
        now = time.monotonic()
        lanes = [lane for lane in self._lanes if lane.readable]
        # Whoever runs nothing has room everywhere: that need not be asked of every lane.
        quiet = [lane for lane in lanes if self._room(lane) > 0] if self._limiter.used else lanes
        if not quiet and self._slot is not None:
            self._slot.polled()  # there is nothing to look for: every place is taken
        times = [self._next_reconcile, *(lane.next_look for lane in quiet)]
        # Without a free slot there is no glance; but whoever is full tells all the same that it is alive.
        times.append(self._next_glance if self._limiter.free > 0 else now + self._settings.poll_interval)
        if self._news.deaf_until > now:
            times.append(self._news.deaf_until)
        await self._news.listen([lane for lane in quiet if not lane.failures])
        kicked = asyncio.create_task(self._kick.wait(), name="consumer:kick")
        waits: set[asyncio.Task[object]] = {kicked}
        if self._news.coming is not None:
            waits.add(self._news.coming)
        try:
            await asyncio.wait(waits, timeout=max(0.0, min(times) - now), return_when=asyncio.FIRST_COMPLETED)
        finally:
            kicked.cancel()
        self._kick.clear()
        if news := self._news.heard():
            for lane in lanes:
                if lane.keys.stream in news:
                    lane.hungry = True

    # --- reconcile --------------------------------------------------------------------------------------------------

    async def _reconcile_if_time(self) -> None:
        """Find entries that are pending to this worker and that it does not know of: a reply was lost on the way.

        Runs between two looks, on the task that reads, so that no reply can be in transit.
        """
        now = time.monotonic()
        if now < self._next_reconcile:
            return
        self._next_reconcile = now + self._settings.reconcile_interval
        # Every so often at all of them: a read whose reply was lost may be carried out long after it was given up.
        self._reconciled += 1
        everywhere = self._reconciled % FULL_RECONCILE == 0
        lanes = [lane for lane in self._lanes if (everywhere or lane.unsure) and lane.readable]
        known = [set(lane.flights) for lane in lanes]
        found: Sequence[list[str] | BrokerError]
        try:
            found = await self._broker.reader.pending_on([lane.keys for lane in lanes], worker=self._worker)
        except BrokerError as error:
            found = [error] * len(lanes)
        for lane, pending, under_way in zip(lanes, found, known, strict=True):
            try:
                if isinstance(pending, BrokerError):
                    raise pending
                await self._reconcile(lane, pending, under_way)
            except HeadraceError as error:
                log.debug("reconcile.failed", route=lane.name, code=error.code)

    async def _reconcile(self, lane: Lane, pending: Sequence[str], under_way: Set[str]) -> None:
        """Take on what is pending and not known, neither now nor when Redis was asked: runs have ended since."""
        unknown = [entry for entry in pending if entry not in lane.flights and entry not in under_way]
        lane.unsure = bool(lane.flights or under_way)
        if not unknown:
            return
        log.warning("entries.adopted", route=lane.name, count=len(unknown))
        room = self._room(lane)
        for delivery in await self._broker.reader.read_ids(lane.keys, unknown[:room]):
            self._start(lane, delivery)
        if unknown[room:]:
            await self._give_back(lane, unknown[room:])
            lane.hungry = True

    async def _give_back(self, lane: Lane, ids: Sequence[str]) -> None:
        """Let others have entries that were not begun. Should that fail, they are found by the reconciler."""
        try:
            await self._broker.leases.unstarted(lane.keys, worker=self._worker, ids=ids)
        except HeadraceError as error:
            lane.unsure = True
            log.debug("entries.not_given_back", route=lane.name, code=error.code)
