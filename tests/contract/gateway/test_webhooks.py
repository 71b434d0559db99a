"""Third parties' webhooks as events."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from runtime.registry.snapshot import ingress_of
from shared_models.route import RouteSpec
from tests.support.gateway import InProcess, gateway_in_process, route_entry
from tests.support.servers import RedisServer

OLD, NEW, PLAIN = "whsec_" + "b2xk" * 8, "whsec_" + "bmV3" * 8, "plain-secret"
JSON = {"content-type": "application/json"}


@pytest.fixture
async def gate(broker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InProcess]:
    monkeypatch.setenv("HOOK_NEW", NEW)
    monkeypatch.setenv("HOOK_PLAIN", PLAIN)
    (tmp_path / "old").write_text(OLD + "\n")
    both = [{"env": "HOOK_NEW"}, {"file": str(tmp_path / "old")}]
    routes = [route_entry("none")]
    for scheme in ("standard", "github", "stripe", "slack"):
        secrets = both if scheme == "standard" else [{"env": "HOOK_PLAIN"}]
        spec = RouteSpec.model_validate({"webhook": {"scheme": scheme, "secrets": secrets, "tenant": "blue"}})
        routes.append(route_entry(scheme, ingress=json.loads(json.dumps(ingress_of(spec)))))
    unset = RouteSpec.model_validate({"webhook": {"secrets": [{"env": "HOOK_UNSET"}]}})
    routes.append(route_entry("unset", ingress=ingress_of(unset)))
    async with gateway_in_process(broker_url, *routes, auth="required") as made:
        yield made


def standard(body: str, message: str = "msg_1", secret: str = NEW, at: float | None = None) -> dict[str, str]:
    when = datetime.fromtimestamp(int(at or time.time()), UTC)
    signature = Webhook(secret).sign(message, when, body)
    return {
        **JSON,
        "webhook-id": message,
        "webhook-timestamp": f"{int(when.timestamp())}",
        "webhook-signature": signature,
    }


def plain(text: bytes) -> str:
    return hmac.new(PLAIN.encode(), text, hashlib.sha256).hexdigest()


def entries(server: RedisServer, route: str) -> list[dict[str, str]]:
    return [fields for _, fields in server.execute("XRANGE", f"flows:{route}", "-", "+")]


async def test_a_signed_message_is_an_event_with_the_body_as_it_came(gate, server):
    body = '{ "type": "order.paid",  "n": 1.0 }'
    done = await gate.http.post("/v1/webhooks/standard", content=body, headers=standard(body))
    assert done.status_code == 202, done.text
    [entry] = entries(server, "standard")
    assert (entry["payload"], entry["event_type"], entry["tenant_id"]) == (body, "order.paid", "blue")
    assert entry["source"] == "webhook:standard"
    told = json.loads(entry["attributes"])["webhook"]
    assert (told["id"], told["headers"]["webhook-id"]) == ("msg_1", "msg_1")
    assert "signature" not in entry["attributes"]


async def test_both_live_secrets_are_good_and_no_other(gate, server):
    for number, (secret, status) in enumerate(((NEW, 202), (OLD, 202), ("whsec_" + "eHh4" * 8, 401))):
        done = await gate.http.post("/v1/webhooks/standard", content="{}", headers=standard("{}", f"m{number}", secret))
        assert done.status_code == status
    assert len(entries(server, "standard")) == 2


async def test_a_message_that_comes_again_is_no_event_again(gate, server):
    first = await gate.http.post("/v1/webhooks/standard", content="{}", headers=standard("{}", at=time.time() - 60))
    again = await gate.http.post("/v1/webhooks/standard", content='{"a":1}', headers=standard('{"a":1}'))
    assert (first.status_code, again.status_code) == (202, 202)
    assert (first.json()["duplicate"], again.json()["duplicate"]) == (False, True)
    assert first.json()["event_id"] == again.json()["event_id"]
    assert len(entries(server, "standard")) == 1


async def test_old_times_and_wrong_signatures_are_refused(gate, server):
    tries = {
        "timestamp_refused": standard("{}", at=time.time() - 400),
        "signature_invalid": standard("{ }"),
        "signature_missing": JSON,
    }
    for code, headers in tries.items():
        done = await gate.http.post("/v1/webhooks/standard", content="{}", headers=headers)
        assert (done.status_code, done.json()["code"]) == (401, code)
        assert "www-authenticate" in done.headers
    assert entries(server, "standard") == []


async def test_github(gate, server):
    body = b'{"action": "opened"}'
    for kind, sent in (("application/json", body), (FORM, b"payload=%7B%22action%22%3A%20%22opened%22%7D")):
        headers = {"content-type": kind, "x-hub-signature-256": f"sha256={plain(sent)}", "x-github-event": "issues"}
        done = await gate.http.post("/v1/webhooks/github", content=sent, headers=headers)
        assert done.status_code == 202, done.text
        # Another delivery id does not make a captured request a new one.
        replay = await gate.http.post(
            "/v1/webhooks/github", content=sent, headers={**headers, "x-github-delivery": "2"}
        )
        assert replay.json()["duplicate"]
    first, second = entries(server, "github")
    assert first["payload"] == second["payload"] == body.decode()
    assert first["event_type"] == "issues"
    assert json.loads(second["attributes"])["raw_body"].startswith("payload=")
    ping = {**JSON, "x-hub-signature-256": f"sha256={plain(b'{}')}", "x-github-event": "ping"}
    assert (await gate.http.post("/v1/webhooks/github", content=b"{}", headers=ping)).json() == {"pong": True}


FORM = "application/x-www-form-urlencoded"


async def test_stripe(gate, server):
    body = b'{"id": "evt_1", "type": "charge.succeeded"}'
    now = int(time.time())
    for at in (now, now - 10):
        signature = f"t={at},v1={plain(f'{at}.'.encode() + body)}"
        done = await gate.http.post(
            "/v1/webhooks/stripe", content=body, headers={**JSON, "stripe-signature": signature}
        )
        assert done.status_code == 202, done.text
    [entry] = entries(server, "stripe")
    assert entry["event_type"] == "charge.succeeded"


async def test_slack(gate, server):
    def headers(body: bytes, kind: str = "application/json") -> dict[str, str]:
        at = str(int(time.time()))
        signature = f"v0={plain(f'v0:{at}:'.encode() + body)}"
        return {"content-type": kind, "x-slack-request-timestamp": at, "x-slack-signature": signature}

    hello = b'{"type": "url_verification", "challenge": "abc"}'
    assert (await gate.http.post("/v1/webhooks/slack", content=hello)).status_code == 401
    done = await gate.http.post("/v1/webhooks/slack", content=hello, headers=headers(hello))
    assert (done.status_code, done.json()) == (200, {"challenge": "abc"})
    event = b'{"event_id": "Ev1", "event": {"type": "app_mention", "text": "hi"}}'
    command = b"command=%2Frun&text=hi+there"
    for body, kind in ((event, "application/json"), (event, "application/json"), (command, FORM)):
        done = await gate.http.post("/v1/webhooks/slack", content=body, headers=headers(body, kind))
        assert done.status_code == 202, done.text
    first, second = entries(server, "slack")
    assert first["event_type"] == "app_mention"
    assert json.loads(second["payload"]) == {"command": "/run", "text": "hi there"}


async def test_what_is_not_set_up_is_told_and_takes_nothing(gate, server):
    done = await gate.http.post("/v1/webhooks/none", json={})
    assert (done.status_code, done.json()["code"]) == (404, "webhook_not_configured")
    done = await gate.http.post("/v1/webhooks/unset", content="{}", headers=standard("{}"))
    assert (done.status_code, done.json()["code"]) == (503, "webhook_secret_missing")
    assert int(done.headers["retry-after"]) > 0
    assert server.execute("EXISTS", "flows:none", "flows:unset") == 0


async def test_no_answer_tells_a_secret(gate):
    done = await gate.http.post("/v1/webhooks/standard", content="{}", headers=standard("{ }"))
    assert not any(secret.removeprefix("whsec_") in done.text for secret in (OLD, NEW, PLAIN))
