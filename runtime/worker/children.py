"""The children of a worker as its supervisor sees them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

from runtime.broker.keys import RouteKeys
from runtime.worker.board import Slot, boot_time
from runtime.worker.channel import Channel, Message
from runtime.worker.zygote import ChildSpec

ORPHAN_LOOK = 0.05
"""Seconds between looks for the end of a child whose parent is gone."""

MOMENT = 0.5
"""Seconds."""


@dataclass(eq=False)
class Child:
    """One child process. Times of the event loop's clock."""

    spec: ChildSpec
    channel: Channel
    slot: Slot
    started: float
    pid: int = 0
    keys: tuple[RouteKeys, ...] = ()
    reading: Message | None = None
    reads_since: float = 0.0
    recycling: bool = False
    unrenewed: bool = False
    """The last renewal did not succeed, and that was told."""
    step: str = ""
    """What it is at, of that which should end soon: a load, say."""
    step_since: float = 0.0
    """When that began (boot clock)."""
    drained_by: float | None = None
    """When it must have ended, since it was told to or ends by itself (boot clock)."""
    killed: bool = False
    blame: tuple[str, ...] | None = None
    """Whose attempts its death is charged to; None: it may be the doing of any that ran."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """Its consumer name."""
        return self.spec.name

    @property
    def runs_alone(self) -> bool:
        """Whether it is for entries that run alone, one after the other."""
        return self.spec.alone is not None

    @property
    def general(self) -> bool:
        """Whether it is one of the processes that a worker was asked for: neither for one route nor for one entry."""
        return not self.runs_alone and self.spec.exclusive is None

    @property
    def lasted(self) -> bool:
        """Whether it has read, and for longer than a moment: then its death is no failure to start."""
        return self.reading is not None and asyncio.get_running_loop().time() - self.reads_since > MOMENT

    def reads(self, report: Message) -> None:
        """Note that it reads."""
        self.reading, self.reads_since = report, asyncio.get_running_loop().time()

    def is_at(self, step: str) -> None:
        """Note what it is at."""
        self.step, self.step_since = step, boot_time()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.killed = True
        if self.pid:  # 0, where the zygote has not forked it yet, would mean this process's own group
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # works on a stopped process too

    async def gone(self) -> None:
        """Wait for the end of one whose parent has ended: nobody else tells. It hangs up first."""
        await self.channel.closed.wait()
        while self.pid and _exists(self.pid):  # noqa: ASYNC110  no signal tells of a stranger's end
            await asyncio.sleep(ORPHAN_LOOK)


class Children:
    """Those that were started and have not ended, by name."""

    def __init__(self) -> None:
        self._children: dict[str, Child] = {}

    def __iter__(self) -> Iterator[Child]:
        return iter(list(self._children.values()))

    def __len__(self) -> int:
        return len(self._children)

    def __contains__(self, child: Child) -> bool:
        return self._children.get(child.name) is child

    def get(self, name: str) -> Child | None:
        """The child of this name."""
        return self._children.get(name)

    def of_pid(self, pid: int) -> Child | None:
        """The child with this process id."""
        return next((child for child in self if child.pid == pid), None)

    def add(self, child: Child) -> None:
        """One that is started."""
        self._children[child.name] = child

    def remove(self, child: Child) -> None:
        """One that has ended."""
        del self._children[child.name]


def how(status: int | None) -> str:
    """How a process has ended, in words. None: nobody knows."""
    if status is None:
        return "unknown, its parent had ended"
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"


def _exists(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False  # an orphan of a container's first process is that one's child
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
