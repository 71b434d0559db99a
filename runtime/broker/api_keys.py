"""API keys of the gateway: what is kept of each, never the key itself.

A key is ``hr_<id>_<secret>``. Kept is the secret's SHA-256: the secret is 32 random bytes, so that there is nothing to
guess, and a slow hash, which passwords need, would only slow down requests. Several keys of one name may live at once:
to rotate a key, make the next, hand it out, and revoke the old one.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from runtime.broker.connection import Connection
from runtime.broker.keys import API_KEYS

PREFIX = "hr"
"""What a key begins with."""


def new_token() -> tuple[str, str, str]:
    """A fresh key: what its owner is given, its id, and the digest that is kept."""
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return f"{PREFIX}_{key_id}_{secret}", key_id, digest(secret)


def digest(secret: str) -> str:
    """What is kept of a key's secret part."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key by its public id. ``digest``: SHA-256 of its secret part, in hex. Times in ms since the epoch.

    ``tenant`` None: all tenants. ``expires_at`` None: never.
    """

    id: str
    digest: str
    scopes: tuple[str, ...]
    name: str = ""
    tenant: str | None = None
    created_at: int = 0
    expires_at: int | None = None


_KEY = TypeAdapter(ApiKey)


class ApiKeys:
    """The keys of the installation."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def add(self, key: ApiKey, *, lives: float | None = None) -> ApiKey:
        """Keep a key, from now on and for ``lives`` seconds; as it is kept."""
        seconds, _ = await self._connection.command("TIME")
        now = int(seconds) * 1000
        kept = replace(key, created_at=now, expires_at=None if lives is None else now + int(lives * 1000))
        await self._connection.command("HSET", API_KEYS, kept.id, _KEY.dump_json(kept))
        return kept

    async def get(self, key_id: str) -> ApiKey | None:
        """A key; None where there is none, or one that cannot be read."""
        return _read(await self._connection.command("HGET", API_KEYS, key_id))

    async def all(self) -> list[ApiKey]:
        """Every key, the oldest first; expired ones too."""
        flat: Sequence[bytes] = await self._connection.command("HGETALL", API_KEYS)
        found = [key for key in map(_read, flat[1::2]) if key is not None]
        return sorted(found, key=lambda key: (key.created_at, key.id))

    async def revoke(self, key_id: str) -> bool:
        """Forget a key; whether there was one."""
        return bool(await self._connection.command("HDEL", API_KEYS, key_id))


def _read(text: bytes | None) -> ApiKey | None:
    try:
        return _KEY.validate_json(text) if text else None
    except ValidationError:
        return None
