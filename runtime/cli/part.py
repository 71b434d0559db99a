"""One of the processes that `headrace up` starts: it says when it is ready through a pipe, and is ended in order."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from runtime.cli.output import note

if TYPE_CHECKING:
    import asyncio
    from asyncio.subprocess import Process


class Part:
    """A `headrace` command as a process of its own: whatever it does takes only itself along."""

    def __init__(self, name: str, process: Process, ready: asyncio.StreamReader) -> None:
        self.name = name
        self._process = process
        self._ready = ready

    @classmethod
    async def start(cls, name: str, words: Sequence[str], settings: Mapping[str, str]) -> Part:
        """Start `headrace` with these words, and these variables beside its own environment."""
        import asyncio

        reading, writing = os.pipe()
        command = [sys.executable, "-P", "-m", "runtime.cli", *words]
        command += ["--ready-fd", str(writing), "--parent", str(os.getpid())]
        # Its own process group: a Ctrl-C in the terminal reaches only `up`, which ends the parts in order. The Redis
        # URL may hold a password, so it does not stand on a command line.
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **settings}, pass_fds=[writing], process_group=0
        )
        os.close(writing)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb")
        )
        return cls(name, process, reader)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.returncode is None

    async def ready(self) -> bytes:
        """What it says when it is ready. Never returns where it ends before, which is for others to notice."""
        import asyncio

        if not (told := await self._ready.read()):
            await asyncio.Event().wait()
        return told

    async def ended(self) -> int:
        """Its exit code, when it has ended."""
        return await self._process.wait()

    def terminate(self) -> None:
        """Ask it to end; asked again, it drops what it does."""
        if self.alive:
            self._process.terminate()

    async def end(self, seconds: float, consequence: str) -> None:
        """Ask it to end and wait; kill it after so many seconds, and say what that means."""
        import asyncio

        if not self.alive:
            return
        self.terminate()
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            note(f"headrace: the {self.name} did not end in time and is killed; {consequence}")
            self._process.kill()
            await self._process.wait()
