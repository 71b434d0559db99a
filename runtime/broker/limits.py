"""What a server takes in one command: it hangs up on a larger one, however often that is sent."""

from __future__ import annotations

from runtime.broker.connection import Connection
from runtime.broker.scripts import Argument, Call
from runtime.errors import BrokerError, BrokerUnavailable, OutcomeTooLarge

LEAST = 1024 * 1024
"""Bytes that every server takes: neither of the two limits can be set lower."""

_DEFAULTS = {"proto-max-bulk-len": 512 * 1024 * 1024, "client-query-buffer-limit": 1024 * 1024 * 1024}
"""The limit of one argument and that of a whole command, where the server does not show them."""

_WIDEST = 8
"""Bytes that a character takes at most, and as much again for the keys."""

_ROOM = 64 * 1024
"""Bytes of a command beside its arguments, generously."""


async def check_size(connection: Connection, asked: Call) -> None:
    """Raises OutcomeTooLarge for a call that the server would hang up on, and BrokerUnavailable."""
    if sum([20 if isinstance(part, (int, float)) else len(part) for part in asked.args]) < LEAST // _WIDEST:
        return
    sizes = [_size(part) for part in (*asked.keys, *asked.args)]
    if sum(sizes) < LEAST:
        return
    bulk, whole = [await _limit(connection, name) for name in _DEFAULTS]
    if max(sizes) > bulk or sum(sizes) + _ROOM > whole:
        raise OutcomeTooLarge(
            f"the outcome has {sum(sizes)} bytes, {max(sizes)} of them in one value; this Redis takes {bulk} in a "
            f"value (proto-max-bulk-len) and {whole} in a command (client-query-buffer-limit)"
        )


async def _limit(connection: Connection, name: str) -> int:
    try:
        reply = await connection.command("CONFIG", "GET", name)
        return int(reply[1])
    except BrokerUnavailable:
        raise
    except (BrokerError, IndexError, ValueError):
        return _DEFAULTS[name]  # a managed service


def _size(part: Argument) -> int:
    if isinstance(part, bytes):
        return len(part)
    return len(part.encode("utf-8", "surrogatepass")) if isinstance(part, str) else 20
