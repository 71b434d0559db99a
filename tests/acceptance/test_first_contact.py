"""A worker that Redis can never serve says why and ends; one whose Redis is merely away waits for it."""

from __future__ import annotations

import pytest

from runtime.broker.keys import RouteKeys
from shared_models.result import RunStatus
from tests.support.command import headrace
from tests.support.harness import client, write_flow
from tests.support.ledger import worker_process
from tests.support.servers import RedisServer, redis_binary, valkey_binary

UNFIT = 7


@pytest.fixture
def flows(tmp_path):
    write_flow(tmp_path / "flows", "echo")
    return tmp_path / "flows"


@pytest.fixture(params=[redis_binary, valkey_binary], ids=["redis", "valkey"], scope="module")
def guarded(request):
    """A server with users of several rights."""
    with RedisServer(request.param()) as server:
        server.execute("ACL", "SETUSER", "noscripts", "on", ">pw", "~*", "&*", "+@all", "-@scripting")
        server.execute("ACL", "SETUSER", "nokeys", "on", ">pw", "~other:*", "&*", "+@all")
        yield server


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("nobody:pw", "does not let this user in"),
        ("noscripts:pw", "cannot run its scripts"),
        ("nokeys:pw", "ermissions"),
    ],
)
def test_what_waiting_does_not_mend_ends_the_worker(guarded, flows, tmp_path, user, reason):
    url = guarded.url.replace("//", f"//{user}@")
    with worker_process(url, flows, tmp_path / "ledger", reading=0) as worker:
        assert worker.ended_with() == UNFIT
    [line] = [line for line in worker.lines if "worker.not_started" in line]
    assert reason in line
    assert "pw" not in line.replace("username-password", "")


def test_up_ends_too_and_with_the_same_code(guarded, flows, tmp_path):
    url = guarded.url.replace("//", "//nobody:pw@")
    done = headrace("up", "--engine", "echo", "--flows", str(flows), "--redis-url", url, home=tmp_path)
    assert done.code == UNFIT
    assert "does not let this user in" in done.out + done.err
    assert "exit code 7" in done.err


@pytest.mark.parametrize("binary", [redis_binary, valkey_binary], ids=["redis", "valkey"])
async def test_a_redis_that_is_away_is_waited_for_quietly(binary, flows, tmp_path):
    server = RedisServer(binary())
    try:
        with worker_process(server.url, flows, tmp_path / "ledger", reading=0) as worker:
            worker.wait_for("redis.failed")
            server.start()
            worker.wait_for("child.reading")
            async with client(server.url) as c:
                event = await c.send("flows:echo", {"input_value": "x"})
                assert (await c.run(RouteKeys("flows:echo", "headrace"), event)).status is RunStatus.COMPLETED
            assert len([line for line in worker.lines if "redis.failed" in line]) <= 10
            assert worker.end() == 0
    finally:
        server.close()
