"""The embedded Valkey: a server of our own under the data folder, where no Redis is given."""

from __future__ import annotations

from pathlib import Path


class EmbeddedValkey:
    """A running server. ``url`` holds its password. ``owned``: this process started it and ``stop`` ends it."""

    url: str
    owned: bool

    @classmethod
    def start(cls, data_dir: Path) -> EmbeddedValkey:
        """Start a server on ``data_dir``, or adopt the one that runs there. Raises BrokerUnavailable saying why not."""
        raise NotImplementedError

    def alive(self) -> bool:
        """Whether the server still runs."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the server if this process started it; its data stays."""
        raise NotImplementedError


def find_redis_url(start: Path) -> str | None:
    """The address in the nearest ``.headrace/redis.url`` at or above ``start``."""
    raise NotImplementedError
