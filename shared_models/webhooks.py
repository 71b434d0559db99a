"""Signatures of webhooks: the Standard Webhooks form, and those of GitHub, Stripe and Slack.

All are HMAC-SHA256 over the body as it came, mostly together with an id and a time. Pure: times are given.

- Standard Webhooks (specification 1.0): ``webhook-id``, ``webhook-timestamp``, ``webhook-signature: v1,<Base64> ...``
  over ``id.timestamp.body``; secrets are Base64, with or without ``whsec_``. The ``svix-`` headers are its forerunner.
- GitHub: ``x-hub-signature-256: sha256=<hex>`` over the body alone. It signs neither time nor delivery id.
- Stripe: ``stripe-signature: t=<s>,v1=<hex>,...`` over ``t.body``.
- Slack: ``x-slack-signature: v0=<hex>`` over ``v0:timestamp:body``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Scheme = Literal["standard", "github", "stripe", "slack"]

_PREFIX = "whsec_"
_MAX_SIGNATURES = 16
"""Signatures looked at in one header: a sender that rotates its secret sends two."""


class SignatureRefused(Exception):
    """The request is not what it says it is. ``code`` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Signed:
    """A request whose signature is good. ``message_id`` is under the signature, or made of what is."""

    message_id: str


def key_of(secret: str) -> bytes:
    """The key that a Standard Webhooks secret stands for. Raises ValueError where it is none."""
    bare = secret.strip().removeprefix(_PREFIX)
    try:
        # Padding is often lost on the way; what is too much of it is ignored.
        key = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("a webhook secret is Base64, with or without whsec_") from error
    if not key:
        raise ValueError("the webhook secret is empty")
    return key


def sign(message_id: str, timestamp: int, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """The headers of a Standard Webhooks request, one signature for each secret. ``timestamp`` in seconds.

    Raises ValueError for a secret that is none.
    """
    text = _standard_text(message_id, str(timestamp), body)
    made = [base64.b64encode(_mac(key_of(secret), text)).decode() for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in made),
    }


def verify(
    scheme: Scheme, headers: Mapping[str, str], body: bytes, secrets: Sequence[str], *, now: float, tolerance: float
) -> Signed:
    """Check a request against any of the live secrets; header names in lower case, times in seconds.

    Raises SignatureRefused, and ValueError for a secret that is none.
    """
    return _SCHEMES[scheme](headers, body, secrets, now, tolerance)


def _standard(headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now: float, tolerance: float) -> Signed:
    prefix = "webhook-" if "webhook-id" in headers else "svix-"
    message_id, timestamp = _header(headers, f"{prefix}id"), _header(headers, f"{prefix}timestamp")
    given = _header(headers, f"{prefix}signature").split(" ")[:_MAX_SIGNATURES]
    text = _standard_text(message_id, timestamp, body)
    good = [base64.b64encode(_mac(key_of(secret), text)).decode() for secret in secrets]
    _match([part.removeprefix("v1,") for part in given if part.startswith("v1,")], good)
    _in_time(timestamp, now, tolerance)
    return Signed(message_id)


def _github(headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now: float, tolerance: float) -> Signed:
    given = _header(headers, "x-hub-signature-256")
    _match([given.removeprefix("sha256=")], [_hex(secret, body) for secret in secrets])
    # The delivery id is not signed: whoever has a delivery could send it again under another.
    return Signed(hashlib.sha256(body).hexdigest())


def _stripe(headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now: float, tolerance: float) -> Signed:
    pairs = [part.strip().partition("=") for part in _header(headers, "stripe-signature").split(",")]
    pairs = pairs[: _MAX_SIGNATURES + 1]
    timestamp = next((value for name, _, value in pairs if name == "t"), "")
    text = timestamp.encode() + b"." + body
    _match([value for name, _, value in pairs if name == "v1"], [_hex(secret, text) for secret in secrets])
    _in_time(timestamp, now, tolerance)
    return Signed(_own_id(body, "id") or hashlib.sha256(text).hexdigest())


def _slack(headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now: float, tolerance: float) -> Signed:
    timestamp = _header(headers, "x-slack-request-timestamp")
    given = _header(headers, "x-slack-signature")
    text = b"v0:" + timestamp.encode() + b":" + body
    _match([given.removeprefix("v0=")], [_hex(secret, text) for secret in secrets])
    _in_time(timestamp, now, tolerance)
    return Signed(_own_id(body, "event_id") or hashlib.sha256(text).hexdigest())


_SCHEMES: Mapping[Scheme, Callable[[Mapping[str, str], bytes, Sequence[str], float, float], Signed]] = {
    "standard": _standard,
    "github": _github,
    "stripe": _stripe,
    "slack": _slack,
}


def _header(headers: Mapping[str, str], name: str) -> str:
    if not (value := headers.get(name, "").strip()):
        raise SignatureRefused("signature_missing", f"the header {name} is missing")
    return value


def _match(given: Sequence[str], good: Sequence[str]) -> None:
    # Every pair is compared, in constant time each: what is wrong about a signature shows in nothing.
    pairs = [hmac.compare_digest(one.encode(), other.encode()) for one in given for other in good]
    if not any(pairs):
        raise SignatureRefused("signature_invalid", "the signature is not that of any live secret")


def _in_time(timestamp: str, now: float, tolerance: float) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise SignatureRefused("timestamp_invalid", "the timestamp is not a time in seconds")
    if abs(now - int(timestamp)) > tolerance:
        raise SignatureRefused("timestamp_refused", f"the timestamp is more than {tolerance:g} s from now")


def _own_id(body: bytes, name: str) -> str:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def _standard_text(message_id: str, timestamp: str, body: bytes) -> bytes:
    return f"{message_id}.{timestamp}.".encode() + body


def _hex(secret: str, text: bytes) -> str:
    return _mac(secret.strip().encode(), text).hex()


def _mac(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).digest()
