"""Reading: new and due entries, waiting for more, and what is pending for a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.broker.connection import Connection
from runtime.broker.delivery import Delivery, Fetched
from runtime.broker.keys import RouteKeys
from runtime.errors import BrokerError


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Ask for up to ``n`` entries of a route for ``worker``.

    ``probe``: if the route is blocked, take one entry to try it with, at most once every ``probe_interval`` seconds.
    """

    keys: RouteKeys
    worker: str
    n: int
    probe: bool = False
    probe_interval: float = 30.0


class Reader:
    """Reads entries for a worker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def fetch(self, requests: Sequence[FetchRequest]) -> list[Fetched | BrokerError]:
        """Due and new entries of many routes in one round trip; an answer or the error for each, in order."""
        raise NotImplementedError

    async def wait(self, tails: Mapping[str, str], timeout: float) -> set[str]:  # noqa: ASYNC109  it is Redis that waits
        """Wait up to ``timeout`` seconds for an entry after its tail on any stream; the streams that have one."""
        raise NotImplementedError

    async def pending(self, keys: RouteKeys, *, worker: str, count: int = 1000) -> list[str]:
        """Ids of entries that are pending for ``worker``, lowest first."""
        raise NotImplementedError

    async def read_ids(self, keys: RouteKeys, ids: Sequence[str]) -> list[Delivery]:
        """The entries with these ids; an id whose entry is gone is acknowledged and left out."""
        raise NotImplementedError
