"""The faults, by kind, and a seeded schedule of them."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import redis

from tests.chaos.events import ROUTES
from tests.chaos.pods import KILLED, Pod, boot
from tests.chaos.world import LEASE, Seat, World

DRAIN_LIMIT = 40.0
"""Seconds that a worker which was told to end may take, while Redis may be away."""


class Faults:
    """Does harm. Every fault heals what it did before it returns."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._draw = random.Random(f"faults {seed}")
        self._tasks: set[asyncio.Task[None]] = set()
        self.count: Counter[str] = Counter()
        self.kinds: dict[str, tuple[int, Callable[[Seat], Awaitable[None]]]] = {
            "kill a child": (10, self.kill_child),
            "kill a worker": (3, self.kill_worker),
            "kill a supervisor": (2, self.kill_supervisor),
            "kill a zygote": (1, self.kill_zygote),
            "kill the server": (3, self.kill_server),
            "stop the server": (2, self.stop_server),
            "make the server slow": (1, self.debug_sleep),
            "stop a worker": (3, self.stop_worker),
            "stop a child": (2, self.stop_child),
            "stop a supervisor": (2, self.stop_supervisor),
            "roll a worker": (4, self.roll_worker),
            "reset connections": (6, self.reset),
            "refuse connections": (2, self.refuse),
            "black hole": (4, self.black_hole),
            "lose replies": (3, self.lose_replies),
            "slow network": (3, self.slow_network),
            "FLUSHALL": (1, self.flush),
            "XGROUP DESTROY": (2, self.destroy_group),
            "DEL due": (2, self.delete_due),
            "swap the flows": (3, self.swap_flows),
        }

    async def run(self, seconds: float, *, every: float) -> None:
        """Start a fault every so often, until the time is over; then wait until all are healed."""
        end = boot() + seconds
        kinds, weights = list(self.kinds), [weight for weight, _ in self.kinds.values()]
        bag: list[str] = list(self.kinds)
        self._draw.shuffle(bag)  # each kind once before any comes again by its weight
        while boot() < end:
            kind = bag.pop() if bag else self._draw.choices(kinds, weights)[0]
            seat = self._draw.choice(self._world.seats)
            task = asyncio.create_task(self._do(kind, seat), name=f"fault:{kind}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(self._draw.expovariate(1 / every))
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _do(self, kind: str, seat: Seat) -> None:
        self._world.say(f"{kind} ({seat.pod.name})")
        self.count[kind] += 1
        try:
            await self.kinds[kind][1](seat)
        except (redis.RedisError, OSError) as error:
            self.count[kind] -= 1  # the server was away by another fault
            self._world.say(f"{kind}: not done, {error!r}")
        except Exception as error:
            self._world.problems.append(f"the fault {kind!r} failed: {error!r}")

    # --- deaths -----------------------------------------------------------------------------------------------------

    async def kill_child(self, seat: Seat) -> None:
        """kill -9 of one child."""
        if not (children := seat.pod.children):
            return
        busy = self._world.busy()
        pid, began = self._draw.choice([pid for pid in children if pid in busy] or children), boot()
        with suppress(ProcessLookupError):
            _kill(pid)
            self._world.kills.append(("child", pid, began))
        self._world.harm("kill a child", began, pod=seat.pod, pid=pid)

    async def kill_worker(self, seat: Seat) -> None:
        """kill -9 of a whole worker: the end of a pod."""
        pod, began = seat.pod, boot()
        children = pod.children
        pod.asked_to_end = True
        pod.signal_all(signal.SIGKILL)
        self._world.kills += [("worker", pid, began) for pid in children]
        self._world.harm("kill a worker", began, pod=pod, to=began + 1)
        await asyncio.sleep(self._draw.uniform(0, 2))
        if seat.pod is pod:
            self._world.replace(seat)

    async def kill_supervisor(self, seat: Seat) -> None:
        """kill -9 of the supervisor only; its children have to notice."""
        pod, began = seat.pod, boot()
        children = pod.children
        pod.asked_to_end = True
        pod.signal(signal.SIGKILL)
        if seat.pod is pod:
            self._world.replace(seat)
        await self._world.until(lambda: not any(map(_alive, children)), DRAIN_LIMIT, f"orphans of {pod.name} ended")
        self._world.harm("kill a supervisor", began, pod=pod)

    async def kill_zygote(self, seat: Seat) -> None:
        """kill -9 of the zygote: the worker cannot go on, and must end to be started again."""
        pod, began, zygote = seat.pod, boot(), seat.pod.zygote
        if zygote is None:
            return
        children = pod.children
        pod.asked_to_end = True
        with suppress(ProcessLookupError):
            _kill(zygote)
        await self._world.until(lambda: pod.code is not None, DRAIN_LIMIT, f"{pod.name} ended without its zygote")
        self._world.say(f"{pod.name} ended {boot() - began:.1f} s after its zygote with code {pod.code}")
        if any(map(_alive, children)):
            self._world.problems.append(f"{pod.name} ended before its children")
        self._world.harm("kill a zygote", began, pod=pod)
        if seat.pod is pod:
            self._world.replace(seat)

    async def roll_worker(self, seat: Seat) -> None:
        """SIGTERM, and another worker at once."""
        pod, began = seat.pod, boot()
        pod.asked_to_end = True
        pod.signal(signal.SIGTERM)
        if seat.pod is pod:
            self._world.replace(seat)
        if await self._world.until(
            lambda: pod.code is not None, DRAIN_LIMIT, f"{pod.name} drained"
        ) and pod.code not in (
            0,
            KILLED,
        ):
            self._world.say(f"{pod.name} drained with code {pod.code}")
            self.count["unclean drains"] += 1
        self._world.harm("roll a worker", began, pod=pod)

    # --- stops ------------------------------------------------------------------------------------------------------

    async def stop_worker(self, seat: Seat) -> None:
        """SIGSTOP of a whole worker, mostly for longer than a lease."""
        pod, began = seat.pod, boot()
        pod.signal_all(signal.SIGSTOP)
        await asyncio.sleep(LEASE * self._draw.uniform(0.5, 3))
        pod.signal_all(signal.SIGCONT)
        self._world.harm("stop a worker", began, pod=pod)

    async def stop_child(self, seat: Seat) -> None:
        """SIGSTOP of one child: its lease is renewed, until it is taken for hung."""
        if not (children := seat.pod.children):
            return
        pid, began = self._draw.choice(children), boot()
        with suppress(ProcessLookupError):
            _kill(pid, signal.SIGSTOP)
        await asyncio.sleep(self._draw.uniform(0.5, 5))
        with suppress(ProcessLookupError):
            _kill(pid, signal.SIGCONT)
        self._world.harm("stop a child", began, pod=seat.pod, pid=pid)

    async def stop_supervisor(self, seat: Seat) -> None:
        """SIGSTOP of the supervisor: its children run on without renewals."""
        pod, began = seat.pod, boot()
        pod.signal(signal.SIGSTOP)
        await asyncio.sleep(LEASE * self._draw.uniform(0.5, 2.5))
        pod.signal(signal.SIGCONT)
        self._world.harm("stop a supervisor", began, pod=pod)

    # --- the network ------------------------------------------------------------------------------------------------

    async def reset(self, seat: Seat) -> None:
        """Every connection of one worker is reset."""
        began = boot()
        seat.proxy.reset()
        self._world.harm("reset connections", began, pod=seat.pod)

    async def refuse(self, seat: Seat) -> None:
        """One worker cannot connect for a while."""
        began, pod = boot(), seat.pod
        seat.proxy.refuse()
        await asyncio.sleep(LEASE * self._draw.uniform(0.2, 2))
        seat.proxy.heal()
        self._world.harm("refuse connections", began, pod=pod)
        self._also_new(seat, pod, "refuse connections", began)

    async def black_hole(self, seat: Seat) -> None:
        """Nothing arrives for a while; then late commands do, or resets."""
        await self._hole(seat, "black hole", seat.proxy.black_hole)

    async def lose_replies(self, seat: Seat) -> None:
        """Commands arrive, replies do not."""
        await self._hole(seat, "lose replies", seat.proxy.deafen)

    async def _hole(self, seat: Seat, kind: str, begin: Callable[[], None]) -> None:
        began, pod = boot(), seat.pod
        begin()
        await asyncio.sleep(LEASE * self._draw.uniform(0.3, 2.5))
        if self._draw.random() < 0.6:
            seat.proxy.reset()
        seat.proxy.heal()
        self._world.harm(kind, began, pod=pod)
        self._also_new(seat, pod, kind, began)

    async def slow_network(self, seat: Seat) -> None:
        """Every reply takes longer."""
        began, pod = boot(), seat.pod
        seat.proxy.slow(self._draw.uniform(0.02, 0.3))
        await asyncio.sleep(self._draw.uniform(1, 4))
        seat.proxy.heal()
        self._world.harm("slow network", began, pod=pod)
        self._also_new(seat, pod, "slow network", began)

    def _also_new(self, seat: Seat, pod: Pod, kind: str, began: float) -> None:
        """A worker that took the seat meanwhile was behind the same proxy."""
        if seat.pod is not pod:
            self._world.harm(kind, began, pod=seat.pod)

    # --- the server -------------------------------------------------------------------------------------------------

    async def kill_server(self, _: Seat) -> None:
        """kill -9 of the server; it comes back with its file."""
        async with self._world.server_turn:
            began = boot()
            await self._world.on_thread(self._world.server.kill)
            await asyncio.sleep(self._draw.uniform(0, 2 * LEASE))
            await self._world.on_thread(self._world.server.start)
            self._world.harm("kill the server", began)

    async def stop_server(self, _: Seat) -> None:
        """The server stands still: connections stay, nothing answers."""
        async with self._world.server_turn:
            began = boot()
            self._world.server.pause()
            await asyncio.sleep(LEASE * self._draw.uniform(0.2, 2))
            self._world.server.resume()
            self._world.harm("stop the server", began)

    async def debug_sleep(self, _: Seat) -> None:
        """The server is busy with one long command after the other."""
        async with self._world.server_turn:
            began = boot()
            with self._world.client() as client:
                for _round in range(5):
                    await asyncio.to_thread(client.execute_command, "DEBUG", "SLEEP", "0.4")
                    await asyncio.sleep(0.1)
            self._world.harm("make the server slow", began)

    async def flush(self, _: Seat) -> None:
        """FLUSHALL; producers send again what had not ended."""
        world = self._world
        async with world.server_turn:
            began = boot()
            epoch = await asyncio.to_thread(world.harvest, flush=True)
            world.harm("FLUSHALL", began)
        assert world.producer is not None
        world.producer.ended |= {event for events in epoch.results.values() for event in events}
        world.producer.ended |= {event for letters in epoch.letters.values() for event, _ in letters}
        await world.producer.resend()

    async def destroy_group(self, _: Seat) -> None:
        """An operator destroys the consumer groups."""
        async with self._world.server_turn:
            began = boot()
            with self._world.client() as client:
                for keys in ROUTES.values():
                    with suppress(redis.ResponseError):  # there is no stream just now
                        client.xgroup_destroy(keys.stream, keys.group)
            self._world.harm("XGROUP DESTROY", began)

    async def delete_due(self, _: Seat) -> None:
        """The table of due times is evicted."""
        async with self._world.server_turn:
            began = boot()
            with self._world.client() as client:
                client.delete(*(keys.due for keys in ROUTES.values()))
            self._world.harm("DEL due", began)

    async def swap_flows(self, _: Seat) -> None:
        """Every flow is written anew."""
        self._world.swap()


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    import os

    os.kill(pid, number)


def _alive(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
