"""The Lua scripts: loaded once, called by SHA-1, and what their negative answers mean."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import resources

from runtime.errors import BrokerError, GroupMissing, LeaseLost, PublishRefused

Argument = str | bytes | int | float


class Refusal(IntEnum):
    """The negative answers of the scripts."""

    NO_LEASE = -1
    LOST = -2
    NO_GROUP = -3
    ENTRY_GONE = -4
    WRONG_TYPE = -5


ERRORS: dict[Refusal, type[BrokerError]] = {
    Refusal.NO_LEASE: LeaseLost,
    Refusal.LOST: LeaseLost,
    Refusal.NO_GROUP: GroupMissing,
    Refusal.ENTRY_GONE: BrokerError,
    Refusal.WRONG_TYPE: PublishRefused,
}
"""Which error a refusal is, where the caller has no outcome of its own for it."""


@dataclass(frozen=True, slots=True)
class Script:
    """One file of ``lua/``."""

    name: str
    source: bytes
    sha: str


@dataclass(frozen=True, slots=True)
class Call:
    """One script with its keys and arguments."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument]


@cache
def script(name: str) -> Script:
    """The script ``lua/<name>.lua``."""
    source = resources.files("runtime.broker.lua").joinpath(f"{name}.lua").read_bytes()
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


def call(name: str, keys: Sequence[str], *args: Argument) -> Call:
    """A call of the script ``name``."""
    return Call(script(name), keys, args)


def refuse(code: int, message: str | None = None) -> BrokerError:
    """The error for a negative answer."""
    refusal = Refusal(code)
    return ERRORS[refusal](message)
