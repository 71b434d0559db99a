"""Masking what looks like a secret, before it is shown or logged. What is stored stays as it was.

A guess by names and shapes: it hides the common ones, and is no licence to log payloads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

MASK = "***"

LONG_NAME = 256
"""Characters of a name beyond which nothing is remembered of it: an event may bring any, of any length."""

_WORD = (
    r"(?:api[_-]?key|(?:auth|access|api|refresh)token|(?-i:(?<![a-zA-Z])(?:token|TOKEN)(?![a-zA-Z])|Token(?![a-z]))"
    r"|passw(?:or)?d|passphrase|secret(?!ary)|authorization|credential|cookie"
    r"|private[_-]?key|access[_-]?key|signing[_-]?key|encryption[_-]?key)"
)
_NAME = re.compile(_WORD, re.IGNORECASE)

_SHAPES = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}"  # OpenAI, Anthropic, Stripe and many that copied them
    r"|\b(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{8,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
    r"|\bhf_[A-Za-z0-9]{16,}|\bgsk_[A-Za-z0-9]{16,}|\bxai-[A-Za-z0-9]{16,}|\bxox[abposr]-[\w-]{8,}"
    r"|\bA(?:KI|SI)A[A-Z0-9]{16}\b|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}"
    r"|\bhr_[0-9a-f]{12}_[\w-]{20,}|\bwhsec_[A-Za-z0-9+/=]{16,}"  # keys of the gateway, webhook secrets
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # a JSON Web Token
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]{0,10000}(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
)
_STARTS = (
    "sk-", "pk-", "rk-", "sk_", "rk_", "gho_", "ghp_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "hf_", "gsk_",
    "xai-", "xox", "AKIA", "ASIA", "AIza", "ya29.", "eyJ", "-----BEGIN ",
    "hr_", "whsec_",
)  # fmt: skip
"""One of these stands in every text that has such a shape."""

_SCHEMES = re.compile(r"bearer|authorization", re.IGNORECASE)
_SCHEME = re.compile(
    r"(\bBearer\s+(?=[\w.~+/=-]{0,200}[\d.~+/=-])|\bAuthorization\W{1,8}(?:Basic|Bearer)\s+)[\w.~+/=-]{6,}",
    re.IGNORECASE,
)
# Each pattern begins with what is rare, so that a text of megabytes is searched in linear time.
_URL = re.compile(r"(://[^\s:/@\"']{0,64}:)[^\s/@\"']{1,256}(@)")
# "name": "value", also where the JSON is itself a string in JSON.
_JSON = re.compile(
    rf"({_WORD}[^\"\\]{{0,64}}\\{{0,7}}\"\s{{0,8}}:\s{{0,8}}\\{{0,7}}\")(?:[^\"\\]|\\(?!\"))+", re.IGNORECASE
)
_ASSIGNED = re.compile(rf"({_WORD}[\w-]{{0,64}}=)[^\s&\"',;]{{4,}}", re.IGNORECASE)


def mask(value: Any) -> Any:
    """A copy of JSON-like data in which what looks like a secret is ``***``; what is no JSON becomes text."""
    return _mask(value, named=False)


def mask_text(text: str) -> str:
    """A text, which may be JSON, in which what looks like a secret is ``***``."""
    # Nearly all texts of a log are short and hold nothing: what no match can do without is looked for first.
    if '"' in text:
        text = _JSON.sub(rf"\1{MASK}", text)
    if _has_start(text):
        text = _SHAPES.sub(MASK, text)
    if _names_scheme(text):
        text = _SCHEME.sub(rf"\1{MASK}", text)
    if "://" in text:
        text = _URL.sub(rf"\1{MASK}\2", text)
    if "=" in text:
        text = _ASSIGNED.sub(rf"\1{MASK}", text)
    return text


def may_hold_secret(text: str) -> bool:
    """Whether ``mask_text`` might change a text, or any part of it; False is certain."""
    return '"' in text or "://" in text or "=" in text or _has_start(text) or _names_scheme(text)


def _has_start(text: str) -> bool:
    for start in _STARTS:  # noqa: SIM110  a generator would take twice as long, for each line of the log
        if start in text:
            return True
    return False


def _names_scheme(text: str) -> bool:
    if not text.isascii():
        return _SCHEMES.search(text) is not None
    lower = text.lower()
    return "bearer" in lower or "authorization" in lower


def is_secret_name(name: str) -> bool:
    """Whether a field of this name is likely to hold a secret."""
    return _known(name) if len(name) <= LONG_NAME else _NAME.search(name) is not None


@lru_cache(maxsize=4096)
def _known(name: str) -> bool:
    return _NAME.search(name) is not None


def _mask(value: Any, *, named: bool) -> Any:
    if isinstance(value, str):
        return MASK if named and value else mask_text(value)
    if isinstance(value, Mapping):
        return {key: _mask(item, named=isinstance(key, str) and is_secret_name(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(item, named=named) for item in value]
    if value is None or isinstance(value, int | float):
        return value
    return MASK if named else mask_text(str(value))  # an exception, say, or bytes: it will be written out so
