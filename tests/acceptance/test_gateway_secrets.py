"""No key of a gateway's clients and no webhook secret is in anything that is logged, kept or answered."""

from __future__ import annotations

import hashlib
import hmac
import json

import httpx

from runtime.broker.api_keys import ApiKey, new_token
from runtime.registry.snapshot import ingress_of
from shared_models.route import RouteSpec
from tests.support.gateway import gateway_process, route_entry
from tests.support.harness import client
from tests.support.servers import RedisServer

HOOK = "canary-of-the-hook-5f2c9e77"
PASSWORD = "canary-of-redis-81d0"


async def everything(url: str) -> str:
    """All that Redis holds, as text."""
    async with client(url) as c:
        found = []
        async for key in c.redis.scan_iter(count=1000):
            read = {"string": "GET", "hash": "HGETALL"}.get(await c.redis.type(key))
            command = (read, key) if read else ("XRANGE", key, "-", "+")
            if await c.redis.type(key) == "zset":
                command = ("ZRANGE", key, 0, -1)
            found.append(f"{key}: {await c.redis.execute_command(*command)}")
        return "\n".join(found)


async def test_no_secret_is_logged_kept_or_answered(valkey_server: RedisServer, tmp_path):
    valkey_server.execute("FLUSHALL")
    valkey_server.execute("ACL", "SETUSER", "gateway", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    url = valkey_server.url.replace("redis://", f"redis://gateway:{PASSWORD}@")
    spec = RouteSpec.model_validate({"webhook": {"scheme": "github", "secrets": [{"env": "HOOK"}]}})
    async with client(valkey_server.url) as c:
        await c.broker.fleet.register([route_entry("hello", ingress=ingress_of(spec))])
        key, key_id, digest = new_token()
        await c.broker.api_keys.add(ApiKey(key_id, digest, ("send",)))
    secret = key.split("_", 2)[2]
    environ = {"HOOK": HOOK, "HEADRACE_LOG__LEVEL": "debug", "HEADRACE_LOG__FORMAT": "json"}
    answers = []
    try:
        with gateway_process(url, tmp_path, "--host", "0.0.0.0", **environ) as gateway:
            base = gateway.url.replace("0.0.0.0", "127.0.0.1")
            good = hmac.new(HOOK.encode(), b"{}", hashlib.sha256).hexdigest()
            async with httpx.AsyncClient(base_url=base) as http:
                for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}, {"x-api-key": key + "x"}):
                    answers.append(await http.post("/v1/routes/hello/events", json={}, headers=headers))
                answers.append(await http.post(f"/v1/routes/hello/events?key={key}", json={}))
                answers.append(await http.post("/v1/routes/hello/events", json={}, headers={"x-api-key": f"a{key}"}))
                for signature in (good, "0" * 64):
                    signed = {"x-hub-signature-256": f"sha256={signature}", "x-github-delivery": "1"}
                    answers.append(await http.post("/v1/webhooks/hello", content=b"{}", headers=signed))
                valkey_server.execute("ACL", "SETUSER", "gateway", "-@all")
                answers.append(await http.get("/readyz"))
    finally:
        valkey_server.execute("ACL", "DELUSER", "gateway")
    assert [done.status_code for done in answers[:7]] == [202, 202, 401, 401, 401, 202, 401]
    assert answers[7].status_code >= 500
    told = {
        "log": "\n".join(gateway.process.err + gateway.process.out),
        "redis": await everything(valkey_server.url),
        "answers": json.dumps([[done.text, dict(done.headers)] for done in answers]),
    }
    assert "http.answered" in told["log"]
    assert "hello" in told["redis"]
    for where, what in told.items():
        for canary in (secret, HOOK, PASSWORD, good):
            assert canary not in what, where
