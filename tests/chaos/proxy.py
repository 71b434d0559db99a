"""A TCP proxy between one worker and its server, in which the network's faults happen.

Nothing is dropped from the middle of a stream: what a black hole holds arrives when it ends, as late packets do, or
never, if the connections are reset first.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

CHUNK = 1 << 16

_LINGER_NONE = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends a reset."""


class Proxy:
    """Listens on loopback and forwards to one port. The faults hold until ``heal``."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._up.set()
        self._down.set()
        self._delay = 0.0
        self._refusing = False

    @property
    def url(self) -> str:
        """What the worker is given."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> Proxy:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        """End every connection and listen no more."""
        assert self._server is not None
        self._server.close()
        self.reset()
        if self._links:
            await asyncio.wait(set(self._links), timeout=5.0)

    # --- faults -----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Reset every connection; new ones are welcome."""
        for link in self._links:
            link.cancel()

    def refuse(self) -> None:
        """Reset every connection, and each new one at once."""
        self._refusing = True
        self.reset()

    def black_hole(self) -> None:
        """Nothing arrives on either side."""
        self._up.clear()
        self._down.clear()

    def deafen(self) -> None:
        """Commands arrive at the server; no reply arrives at the worker."""
        self._down.clear()

    def slow(self, seconds: float) -> None:
        """Every reply takes this much longer."""
        self._delay = seconds

    def heal(self) -> None:
        """Forward as before, first what was held."""
        self._refusing, self._delay = False, 0.0
        self._up.set()
        self._down.set()

    # --- forwarding -------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            if not self._refusing:
                await self._link(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # cancelled by `reset`, or by the end of the loop: both end here
        finally:
            self._links.discard(task)
            _reset(writer)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._up.wait()
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        pumps = {
            asyncio.create_task(self._pump(reader, far_writer, up=True), name="proxy:up"),
            asyncio.create_task(self._pump(far_reader, writer, up=False), name="proxy:down"),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            _reset(far_writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        gate = self._up if up else self._down
        while True:
            data = await reader.read(CHUNK)
            await gate.wait()
            if not data:
                return
            if self._delay and not up:
                await asyncio.sleep(self._delay)
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    line = writer.get_extra_info("socket")
    if line is not None:
        with contextlib.suppress(OSError):
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    writer.transport.abort()
