"""Signatures of webhooks: the senders' own examples, the official library, and what is refused."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook

from shared_models.webhooks import SignatureRefused, key_of, sign, verify

NOW = 1_700_000_000
OLD, NEW = "whsec_" + "b2xk" * 8, "bmV3" * 8

SLACK_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
SLACK_HEADERS = {
    "x-slack-request-timestamp": "1531420618",
    "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
}
GITHUB_HEADERS = {
    "x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
    "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
}


def stripe(body: bytes, secret: str, at: int = NOW) -> dict[str, str]:
    mac = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {"stripe-signature": f"t={at},v1={'0' * 64},v1={mac},v0=abc"}


def refused(*args: object, **more: object) -> str:
    with pytest.raises(SignatureRefused) as caught:
        verify(*args, **{"now": NOW, "tolerance": 300, **more})
    return caught.value.code


def test_the_official_library_takes_ours() -> None:
    now = int(datetime.now(UTC).timestamp())
    headers = sign("msg_1", now, b'{"a": 1}', [OLD, NEW])
    for secret in (OLD, NEW):
        assert Webhook(secret).verify(b'{"a": 1}', headers) == {"a": 1}


def test_we_take_the_official_librarys() -> None:
    signature = Webhook(OLD).sign("msg_1", datetime.fromtimestamp(NOW, UTC), '{"a": 1}')
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(NOW), "webhook-signature": f"v1a,x v1,bad {signature}"}
    for secrets in ([OLD], [NEW, OLD]):
        assert verify("standard", headers, b'{"a": 1}', secrets, now=NOW, tolerance=300).message_id == "msg_1"
    theirs = {name.replace("webhook-", "svix-"): value for name, value in headers.items()}
    assert verify("standard", theirs, b'{"a": 1}', [OLD], now=NOW, tolerance=300).message_id == "msg_1"


def test_the_senders_own_examples() -> None:
    done = verify("github", GITHUB_HEADERS, b"Hello, World!", ["It's a Secret to Everybody"], now=0, tolerance=1)
    assert done.message_id == hashlib.sha256(b"Hello, World!").hexdigest()
    verify("slack", SLACK_HEADERS, SLACK_BODY, [SLACK_SECRET], now=1_531_420_700, tolerance=300)


def test_the_id_is_one_that_is_signed() -> None:
    body = b'{"id": "evt_1", "type": "charge.succeeded"}'
    assert verify("stripe", stripe(body, "s"), body, ["s"], now=NOW, tolerance=300).message_id == "evt_1"
    other = {**GITHUB_HEADERS, "x-github-delivery": "another"}
    made = [
        verify("github", h, b"Hello, World!", ["It's a Secret to Everybody"], now=0, tolerance=1)
        for h in (other, GITHUB_HEADERS)
    ]
    assert made[0] == made[1]


def test_what_is_not_signed_so_is_refused() -> None:
    good = sign("msg_1", NOW, b"{}", [OLD])
    assert refused("standard", good, b"{ }", [OLD]) == "signature_invalid"
    assert refused("standard", good, b"{}", [NEW]) == "signature_invalid"
    assert refused("standard", {**good, "webhook-id": "msg_2"}, b"{}", [OLD]) == "signature_invalid"
    assert refused("standard", {**good, "webhook-timestamp": str(NOW + 1)}, b"{}", [OLD]) == "signature_invalid"
    unmarked = good["webhook-signature"].removeprefix("v1,")
    assert refused("standard", {**good, "webhook-signature": unmarked}, b"{}", [OLD]) == "signature_invalid"
    for name in good:
        assert refused("standard", {k: v for k, v in good.items() if k != name}, b"{}", [OLD]) == "signature_missing"
    for scheme in ("github", "stripe", "slack"):
        assert refused(scheme, good, b"{}", [OLD]) == "signature_missing"
    assert refused("github", GITHUB_HEADERS, b"Hello, World", ["It's a Secret to Everybody"]) == "signature_invalid"
    assert refused("stripe", stripe(b"{}", "s"), b"{}", ["t"]) == "signature_invalid"
    assert refused("stripe", {"stripe-signature": "v1"}, b"{}", ["t"]) == "signature_invalid"
    assert refused("slack", {**SLACK_HEADERS, "x-slack-signature": "v0=é"}, b"{}", ["t"]) == "signature_invalid"


@pytest.mark.parametrize("late", [301, -301, 10**9])
def test_old_and_future_times_are_refused(late: int) -> None:
    for scheme, headers in (("standard", sign("m", NOW, b"{}", [OLD])), ("stripe", stripe(b"{}", OLD))):
        assert refused(scheme, headers, b"{}", [OLD], now=NOW + late) == "timestamp_refused"
    assert refused("slack", SLACK_HEADERS, SLACK_BODY, [SLACK_SECRET], now=1_531_420_618 + late) == "timestamp_refused"


def test_a_time_that_is_none_is_refused_even_when_signed() -> None:
    for text in ("", "-1", "1e9", "٣", "9" * 13):
        mac = hmac.new(b"s", f"{text}.".encode() + b"{}", hashlib.sha256).hexdigest()
        assert refused("stripe", {"stripe-signature": f"t={text},v1={mac}"}, b"{}", ["s"]) == "timestamp_invalid"


def test_a_secret_that_is_none_is_told() -> None:
    for secret in ("", "whsec_", "not base64!", "é"):
        with pytest.raises(ValueError, match="webhook secret"):
            key_of(secret)
    assert key_of("whsec_YWI") == key_of("YWI=") == b"ab"
