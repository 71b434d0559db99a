"""Where Redis is, and a broker on it for the length of a command."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.broker.client import Broker
    from runtime.settings import Settings

NO_REDIS = (
    "no Redis is given: use --redis-url, HEADRACE_REDIS__URL or REDIS_URL, or start one with `headrace up` "
    "(its address is looked for in .headrace/redis.url here and in the folders above)"
)


def read_settings() -> Settings:
    """The settings from the environment. Raises SettingsError."""
    from runtime.settings import load_settings

    return load_settings()


def find_url(option: str | None, settings: Settings, environ: Mapping[str, str] = os.environ) -> str:
    """The Redis URL: the option, HEADRACE_REDIS__URL, REDIS_URL, or that of a running `headrace up`.

    Raises BrokerUnavailable if there is none.
    """
    from runtime.errors import BrokerUnavailable

    if url := known_url(option, settings, environ):
        return _checked(url)
    raise BrokerUnavailable(NO_REDIS)


def known_url(option: str | None, settings: Settings, environ: Mapping[str, str] = os.environ) -> str | None:
    """As ``find_url``, unchecked, and None if there is none."""
    return given_url(option, settings, environ) or _embedded_url(settings)


def given_url(option: str | None, settings: Settings, environ: Mapping[str, str] = os.environ) -> str | None:
    """The Redis URL that the user gave, if any."""
    configured = settings.redis.url.get_secret_value() if settings.redis.url else None
    return option or configured or environ.get("REDIS_URL") or None


def _checked(url: str) -> str:
    from runtime.broker.address import FORMS, parse
    from runtime.errors import BrokerError, SettingsError

    try:
        parse(url)
    except BrokerError:
        # The URL itself is not told: what is wrong about it may be where its password stands.
        raise SettingsError(f"what is given is not a Redis URL; write {FORMS}") from None
    return url


def _embedded_url(settings: Settings) -> str | None:
    from runtime.broker.embedded import find_redis_url

    own = settings.data / "redis.url"
    if own.is_file() and (text := own.read_text(encoding="utf-8").strip()):
        return text
    return find_redis_url(Path.cwd())


@asynccontextmanager
async def connected(option: str | None, settings: Settings | None = None) -> AsyncIterator[Broker]:
    """A broker. Nothing is sent to Redis before it is used."""
    from runtime.broker.client import Broker

    settings = settings or read_settings()
    broker = Broker.connect(find_url(option, settings), settings.redis, settings.retention)
    try:
        yield broker
    finally:
        await broker.close()
