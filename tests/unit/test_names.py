from __future__ import annotations

import binascii

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_models.errors import EnvelopeInvalid
from shared_models.names import check_stream_name, hash_tag, key_part, key_prefix, publish_prefix, slug


def slot(key: str) -> int:
    """A key's slot as Redis Cluster computes it: CRC16 (XMODEM) of the hash tag, or of the key without one."""
    raw = key.encode()
    start = raw.find(b"{")
    if start >= 0:
        end = raw.find(b"}", start + 1)
        if end > start + 1:
            raw = raw[start + 1 : end]
    return binascii.crc_hqx(raw, 0) % 16384


@pytest.mark.parametrize(("key", "expected"), [("foo", 12182), ("{user1000}.following", 3443), ("somekey", 11058)])
def test_the_slot_here_is_that_of_redis(key: str, expected: int) -> None:
    # As CLUSTER KEYSLOT answers.
    assert slot(key) == expected


@pytest.mark.parametrize(
    "stream",
    ["flows:hello", "{orders}:in", "a{b}c", "a{b}{c}", "{a}{b", "{{a}", "x{", "{", "agent_jobs:code_gen", "é{ü}"],
)
def test_every_derived_key_lies_in_its_streams_slot(stream: str) -> None:
    assert slot(key_prefix(stream, "headrace") + "due") == slot(stream)
    assert slot(publish_prefix(stream) + "event") == slot(stream)


@given(st.text(alphabet="a{}:é", min_size=1, max_size=12))
def test_a_stream_is_refused_or_its_keys_share_its_slot(stream: str) -> None:
    try:
        check_stream_name(stream)
    except EnvelopeInvalid:
        return
    for key in (key_prefix(stream, "g") + "run:{x}", publish_prefix(stream) + "}{"):
        assert slot(key) == slot(stream)


@given(st.text(alphabet="a{:", min_size=1, max_size=6), st.text(alphabet="a{:", min_size=1, max_size=6))
def test_two_streams_never_share_a_prefix(one: str, other: str) -> None:
    if one != other:
        assert key_prefix(one, "g") != key_prefix(other, "g")


@pytest.mark.parametrize("stream", ["", "a}b", "{}x", "hr:x", "a\nb", "x" * 513])
def test_names_that_cannot_be_used_are_refused_naming_the_field(stream: str) -> None:
    with pytest.raises(EnvelopeInvalid) as caught:
        check_stream_name(stream, field="reply_to")
    assert caught.value.field == "reply_to"
    assert caught.value.message.startswith("reply_to: ")


def test_the_hash_tag_of_a_plain_name_is_the_name() -> None:
    assert hash_tag("flows:hello") == "flows:hello"
    assert hash_tag("a{b}c") == "b"


def test_a_long_key_part_is_hashed() -> None:
    assert key_part("short") == "short"
    assert len(key_part("x" * 129)) == 64
    assert key_part("x" * 129) != key_part("y" * 129)
    for character, most in (("x", 128), ("é", 64), ("\ud800", 42), ("😀", 32)):
        assert key_part(character * most) == character * most
        assert len(key_part(character * most + character)) == 64


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        ("Basic Prompting (1)", "basic-prompting-1"),
        ("agent_jobs.code_gen", "agent-jobs-code-gen"),
        ("Über Straße", "uber-strasse"),
        ("résumé", "resume"),
        ("Crème  brûlée!", "creme-brulee"),
        ("İstanbul", "istanbul"),
        ("ﬁne ①", "fine-1"),
        ("聊天 助手", "聊天-助手"),
        ("が_x", "が-x"),
        ("---", ""),
        ("", ""),
    ],
)
def test_slug(stem: str, expected: str) -> None:
    assert slug(stem) == expected


@given(st.text(max_size=30))
def test_a_slug_is_stable_and_can_be_part_of_a_stream_name(stem: str) -> None:
    name = slug(stem)
    assert slug(name) == name
    if name:
        check_stream_name(f"flows:{name}")
