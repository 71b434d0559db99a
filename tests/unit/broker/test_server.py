"""What ends a worker before its first lease, and what it waits for."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.broker.client import Broker
from runtime.broker.server import admit
from runtime.errors import AccessDenied, BrokerError, BrokerUnavailable, ServerUnfit


class Replies:
    """A connection whose commands are answered from a table; what is not in it is answered as a good Redis would."""

    def __init__(self, **replies: Any) -> None:
        self._replies = {"PING": b"PONG", "INFO": b"redis_version:7.0.15\r\n", "EVAL": 1, **replies}

    async def command(self, *args: Any) -> Any:
        reply = self._replies[args[0]]
        if isinstance(reply, Exception):
            raise reply
        return reply


def on(**replies: Any) -> Broker:
    return Broker(Replies(**replies))


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        ({"PING": AccessDenied("WRONGPASS no")}, "WRONGPASS"),
        ({"PING": BrokerError("DB index is out of range")}, "DB index"),
        ({"INFO": b"redis_version:6.2.14\r\n"}, "this is Redis 6.2.14"),
        ({"INFO": b"redis_version:7.0.15\r\ncluster_enabled:1\r\n"}, "one of a cluster"),
        (
            {"EVAL": BrokerError("no permissions to run the 'eval' command")},
            "cannot run its scripts here: no permissions",
        ),
    ],
)
async def test_where_waiting_does_not_help(replies: dict[str, Any], reason: str) -> None:
    with pytest.raises(ServerUnfit, match=reason) as caught:
        await admit(on(**replies))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("command", ["PING", "INFO", "EVAL"])
async def test_a_server_that_is_away_or_loads_is_waited_for(command: str) -> None:
    with pytest.raises(BrokerUnavailable) as caught:
        await admit(on(**{command: BrokerUnavailable("Redis cannot be used now: LOADING")}))
    assert not isinstance(caught.value, AccessDenied)


@pytest.mark.parametrize(
    "info",
    [
        b"redis_version:6.2.14\r\nvalkey_version:8.0.1\r\n",
        b"redis_version:7.2.4\r\n",
        BrokerError("NOPERM"),
        b"redis_version:7.0-rc1\r\n",
        b"redis_version:8\r\n",
        b"redis_version:vendor-7\r\n",
    ],
)
async def test_servers_that_will_do(info: Any) -> None:
    await admit(on(INFO=info))
