"""What is kept of a run that waits, as it lies in Redis: compressed, and encrypted where there is a key. Pure."""

from __future__ import annotations

import hashlib
import os
import zlib

from runtime.errors import CheckpointLocked, EventFault
from shared_models.dead_letter import ErrorInfo

_PLAIN = b"p"
_SEALED = b"s"
_ID = 4
_NONCE = 12


class Seal:
    """Seals with the first of some keys (texts, separated by commas), and opens what any of them has sealed.

    AES-256-GCM under the SHA-256 of the key's text: it should be random, and long. What was sealed for one run does not
    open for another.
    """

    def __init__(self, keys: str | None) -> None:
        texts = [text.strip() for text in (keys or "").split(",")]
        self._keys = [hashlib.sha256(b"headrace checkpoint " + text.encode()).digest() for text in texts if text]

    def seal(self, state: bytes, *, run: str) -> bytes:
        """``state`` as it is kept for ``run``."""
        # Every other run waits meanwhile: a third of the usual level's time, and a quarter larger at most.
        packed = zlib.compress(state, 1)
        if not self._keys:
            return _PLAIN + packed
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  comes with the engine

        key, nonce = self._keys[0], os.urandom(_NONCE)
        return _SEALED + _id(key) + nonce + AESGCM(key).encrypt(nonce, packed, run.encode())

    def open(self, kept: bytes, *, run: str) -> bytes:
        """What was sealed for ``run``. Raises CheckpointLocked, and EventFault for what is none."""
        try:
            return zlib.decompress(self._packed(kept, run))
        except zlib.error as error:
            raise _unreadable("it is damaged") from error

    def _packed(self, kept: bytes, run: str) -> bytes:
        if kept[:1] == _PLAIN and not self._keys:
            return kept[1:]
        if kept[:1] == _PLAIN:
            # Whoever can write to Redis could have the engine load what they like.
            raise _unreadable("it is not encrypted, and this worker has a key; requeued, the event is asked anew")
        if kept[:1] != _SEALED:
            raise _unreadable("it is of no known form")
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  comes with the engine
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  as above

        name, nonce, sealed = kept[1 : 1 + _ID], kept[1 + _ID : 1 + _ID + _NONCE], kept[1 + _ID + _NONCE :]
        key = next((key for key in self._keys if _id(key) == name), None)
        if key is None:
            raise CheckpointLocked(
                ErrorInfo(
                    code="checkpoint_key",
                    message="a run waited for a decision, and what was kept of it is encrypted with a key that this "
                    "worker lacks: add it to HEADRACE_WORKER__CHECKPOINT_KEY, after the present one and a comma, or "
                    "cancel the run",
                )
            )
        try:
            return AESGCM(key).decrypt(nonce, sealed, run.encode())
        except (InvalidTag, ValueError) as error:
            raise _unreadable("it was sealed for another run, or changed") from error


def _id(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()[:_ID]


def _unreadable(why: str) -> EventFault:
    return EventFault(
        ErrorInfo(
            code="checkpoint_unreadable",
            message=f"the run waited for a decision, and what was kept of it cannot be read: {why}",
        )
    )
