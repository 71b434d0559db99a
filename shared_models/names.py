"""Stream and key names that producers, workers and operators share.

Redis Cluster hashes the part of a key between the first ``{`` and the next ``}``, if it is not empty (Redis Cluster
Specification, "Hash tags"). All keys of one stream and group must lie in the stream's slot, so each derived key carries
the stream's own hash tag.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

from shared_models.errors import EnvelopeInvalid

KEY_PREFIX = "hr:"
"""Every key of Headrace's own begins with this; a stream that an event may name must not."""

PARKED = "~parked"
"""The reserved consumer that holds entries which wait for their due time."""

MAX_NAME_BYTES = 512
MAX_KEY_BYTES = 128


def hash_tag(stream: str, *, field: str = "stream") -> str:
    """The hash tag that puts a derived key in ``stream``'s slot, without braces.

    Raises EnvelopeInvalid for a name whose slot no derived key can share (``a}b``, ``{}x``).
    """
    start = stream.find("{")
    if start >= 0:
        end = stream.find("}", start + 1)
        if end > start + 1:
            return stream[start + 1 : end]
        if end == start + 1:
            raise EnvelopeInvalid(f"{field}: the name {stream!r} begins its braces with an empty pair", field=field)
    if "}" in stream:
        raise EnvelopeInvalid(f"{field}: the name {stream!r} has a closing brace without a pair", field=field)
    return stream


def check_stream_name(stream: str, *, field: str = "stream") -> str:
    """``stream`` if it can be used; EnvelopeInvalid otherwise."""
    if not stream or len(stream.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise EnvelopeInvalid(f"{field}: a stream name has 1 to {MAX_NAME_BYTES} bytes", field=field)
    if stream.startswith(KEY_PREFIX):
        raise EnvelopeInvalid(f"{field}: names that begin with {KEY_PREFIX!r} are Headrace's own", field=field)
    if any(ord(c) < 32 for c in stream):
        raise EnvelopeInvalid(f"{field}: a stream name has no control characters", field=field)
    hash_tag(stream, field=field)
    return stream


def key_prefix(stream: str, group: str) -> str:
    """The prefix of all keys of one stream and group: ``hr:{<tag>}:[<stream>:]<group>:``."""
    tag = hash_tag(stream)
    middle = "" if tag == stream else f"{stream}:"
    return f"{KEY_PREFIX}{{{tag}}}:{middle}{group}:"


def publish_prefix(stream: str) -> str:
    """The prefix of the keys that remember which events were published to ``stream``."""
    tag = hash_tag(stream)
    middle = "" if tag == stream else f"{stream}:"
    return f"{KEY_PREFIX}{{{tag}}}:{middle}pub:"


def key_part(value: str) -> str:
    """``value`` as part of a key: itself up to 128 bytes of UTF-8, else its SHA-256 in hex."""
    raw = value.encode("utf-8", "surrogatepass")
    return value if len(raw) <= MAX_KEY_BYTES else hashlib.sha256(raw).hexdigest()


def default_stream(route: str) -> str:
    """The stream a route reads where its spec names none."""
    return f"flows:{route}"


def default_results(stream: str) -> str:
    """Where outcomes go that no publish rule claims."""
    return f"{stream}:results"


def default_dead_letters(stream: str) -> str:
    """Where a stream's dead letters go unless the spec says otherwise."""
    return f"{stream}:dead_letter"


def default_callbacks(stream: str, group: str) -> str:
    """Where the callbacks of a route wait for their delivery. No two routes share one."""
    return f"{stream}:callbacks" if group == "headrace" else f"{stream}:{group}:callbacks"


def callbacks_route(route: str) -> str:
    """The name of the route that delivers a route's callbacks. No slug has a colon: it meets no other."""
    return f"{route}:callbacks"


_ACCENTS = re.compile(r"(?<=[a-z])[\u0300-\u036f]+")


def slug(stem: str) -> str:
    """A route's name from a file's stem: ``Basic Prompting (1)`` becomes ``basic-prompting-1``.

    Lower case; accents leave their Latin letters (``Über``, ``uber``), letters of other scripts stay, everything else
    becomes a dash. Empty where the stem has no letter or digit.
    """
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", stem.casefold())).casefold()
    kept = (c if unicodedata.category(c)[0] in "LNM" else "-" for c in unicodedata.normalize("NFC", plain))
    return re.sub("-+", "-", "".join(kept)).strip("-")
