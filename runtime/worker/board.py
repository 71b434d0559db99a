"""The board: shared memory in which each child shows that its loop turns, without a system call and without a lock.

Anonymous, so it is there for a child that a fork made and gone with the last process. One slot a child; only that child
writes it, the supervisor only reads. Times are of the boot clock, which goes on while a machine or container is frozen.
"""

from __future__ import annotations

import mmap
import struct
import time

SLOTS = 512
_SLOT = 256
_TIMES = struct.Struct("<QQQQ")
_NAME = struct.Struct("<H")
_LEFT_AT = _TIMES.size
_NAME_AT = _LEFT_AT + 1
_NAME_MAX = _SLOT - _NAME_AT - _NAME.size


def boot_time() -> float:
    """Seconds of the boot clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Slot:
    """One child's slot."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._at = at

    def clear(self) -> None:
        """Make it a new child's: everything is as of now."""
        now = _nanoseconds(boot_time())
        _TIMES.pack_into(self._memory, self._at, now, now, now, 0)
        self._memory[self._at + _LEFT_AT] = False
        self.blame("")

    def beat(self) -> None:
        """The loop has turned."""
        self._write(0)

    def polled(self) -> None:
        """Redis has answered a look at the streams."""
        self._write(1)

    def picked(self) -> None:
        """An entry was picked up."""
        self._write(2)

    def occupied(self, used: int) -> None:
        """So many of its places are in use."""
        struct.pack_into("<Q", self._memory, self._at + 24, used)

    @property
    def used(self) -> int:
        """How many of its places are in use."""
        (used,) = struct.unpack_from("<Q", self._memory, self._at + 24)
        return int(used)

    def leave(self) -> None:
        """It ends of its own accord: nothing that it held is left."""
        self._memory[self._at + _LEFT_AT] = True

    @property
    def left(self) -> bool:
        """Whether it has ended of its own accord. Its exit code does not tell: a component may end it with 0."""
        return bool(self._memory[self._at + _LEFT_AT])

    def blame(self, token: str) -> None:
        """Whose code holds the loop up; empty: nobody's."""
        raw = token.encode()[:_NAME_MAX]
        at = self._at + _NAME_AT
        _NAME.pack_into(self._memory, at, 0)
        self._memory[at + _NAME.size : at + _NAME.size + len(raw)] = raw
        _NAME.pack_into(self._memory, at, len(raw))

    @property
    def ages(self) -> tuple[float, float, float]:
        """Seconds since the last beat, poll and pick."""
        now = _nanoseconds(boot_time())
        beat, poll, pick, _ = _TIMES.unpack_from(self._memory, self._at)
        return ((now - beat) / 1e9, (now - poll) / 1e9, (now - pick) / 1e9)

    @property
    def blamed(self) -> str:
        """The token that was blamed last."""
        at = self._at + _NAME_AT
        (length,) = _NAME.unpack_from(self._memory, at)
        return self._memory[at + _NAME.size : at + _NAME.size + length].decode(errors="replace")

    def _write(self, which: int) -> None:
        struct.pack_into("<Q", self._memory, self._at + 8 * which, _nanoseconds(boot_time()))


class Board:
    """All slots. Made before the first fork."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SLOTS * _SLOT)
        self._free = list(range(SLOTS - 1, -1, -1))

    def take(self) -> int:
        """A free slot's number, cleared. The supervisor's to call."""
        number = self._free.pop()
        self.slot(number).clear()
        return number

    def give_back(self, number: int) -> None:
        """The slot of a child that has ended."""
        self._free.append(number)

    def slot(self, number: int) -> Slot:
        """A slot by its number."""
        return Slot(self._memory, number * _SLOT)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
