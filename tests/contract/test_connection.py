"""The connection on real servers: lost replies, cancelled commands, restarts, full memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any, cast

import hiredis
import pytest
from redis.asyncio import Redis
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedConnection

from runtime.broker import address
from runtime.broker.client import Broker
from runtime.broker.connection import CONNECTIONS, Server
from runtime.broker.outcome import Settled
from runtime.broker.scripts import call
from runtime.errors import BrokerError, BrokerUnavailable, GroupMissing
from runtime.settings import RedisSettings
from tests.support.hand import DEAD, KEYS, STREAM, Hand, publish_one, raw, send
from tests.support.servers import RedisServer, free_port, redis_binary, valkey_binary

QUICK = RedisSettings(connect_timeout=2.0, command_timeout=0.3)


@pytest.fixture(params=["valkey", "redis"])
def own(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server that a test may stop."""
    binary = valkey_binary() if request.param == "valkey" else redis_binary()
    with RedisServer(binary, persistent=True) as server:
        yield server


@pytest.fixture
async def quick(own: RedisServer) -> AsyncIterator[Broker]:
    broker = Broker.connect(own.url, QUICK)
    yield broker
    await broker.close()


async def test_scripts_are_sent_again_when_the_server_has_forgotten_them(real_broker: Broker) -> None:
    broker = real_broker
    hand = await Hand.ready(broker)
    await raw(broker, "SCRIPT", "FLUSH")
    await send(broker, "e1")
    await hand.begin(await hand.one())
    await raw(broker, "SCRIPT", "FLUSH")
    probes = [call("probe", [KEYS.blocked])] * 3
    assert await broker.connection.run_all([*probes, call("renew", [KEYS.leases], 5, "w1")]) == [[0], [0], [0], [1]]


async def test_t38_cancelled_commands_never_leave_a_reply_behind(real_broker: Broker) -> None:
    """Ten thousand of them on the two servers together."""
    connection = real_broker.connection
    draw = random.Random(7)
    cancelled = 0

    async def echo(n: int) -> None:
        if n % 3:
            assert await connection.command("ECHO", n) == b"%d" % n
        else:
            assert await connection.pipeline([("ECHO", n), ("ECHO", -n)]) == [b"%d" % n, b"%d" % -n]

    n = 0
    while cancelled < 5_000:
        n += 1
        tasks = [asyncio.create_task(echo(100 * n + k)) for k in range(draw.randrange(8, 30))]
        for _ in range(draw.randrange(14)):
            await asyncio.sleep(0)
        for task in tasks[:: draw.choice((1, 2))]:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            cancelled += isinstance(result, asyncio.CancelledError)
            assert result is None or isinstance(result, asyncio.CancelledError), result
    await asyncio.wait_for(asyncio.gather(*(echo(n) for n in range(4 * CONNECTIONS))), 10.0)


async def test_cancelled_waits_never_leave_a_reply_behind(real_broker: Broker) -> None:
    for n in range(50):
        waiting = asyncio.create_task(real_broker.reader.wait({f"s{n}": "0-0"}, 10.0))
        for _ in range(n % 12):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        await send(real_broker, "e", f"s{n}")
        assert await real_broker.reader.wait({f"s{n}": "0-0", "none": "0-0"}, 10.0) == {f"s{n}"}


async def test_many_callers_share_few_connections(own: RedisServer) -> None:
    broker = Broker.connect(own.url, RedisSettings())
    await asyncio.gather(*(raw(broker, "PING") for _ in range(500)))
    clients = [line for line in own.execute("CLIENT", "LIST").splitlines() if "cmd=client|list" not in line]
    assert len(clients) <= CONNECTIONS
    await broker.close()


async def test_a_lost_reply_is_an_error_and_the_repeat_is_recognised(own: RedisServer, quick: Broker) -> None:
    hand = await Hand.ready(quick)
    fields = (("event_id", "e1"), ("payload", "{}"))
    await publish_one(quick, KEYS, STREAM, (("event_id", "e0"),), event_id="e0")  # knows the script
    own.pause()
    with pytest.raises(BrokerUnavailable):
        await publish_one(quick, KEYS, STREAM, fields, event_id="e1")
    with pytest.raises(BrokerUnavailable):
        await hand.renew()
    own.resume()
    assert not (await publish_one(quick, KEYS, STREAM, fields, event_id="e1")).new
    assert await raw(quick, "XLEN", STREAM) == 2


async def test_every_call_of_a_run_may_be_repeated_after_a_lost_reply(own: RedisServer, quick: Broker) -> None:
    hand = await Hand.ready(quick)
    await send(quick, "e0")
    first = await hand.begin(await hand.one())
    await hand.complete(first)
    await send(quick, "e1")
    own.pause()
    with pytest.raises(BrokerUnavailable):
        await hand.fetch()
    own.resume()
    assert await hand.fetch() == []
    (delivery,) = await quick.reader.read_ids(KEYS, await quick.reader.pending(KEYS, worker="w1"))
    own.pause()
    with pytest.raises(BrokerUnavailable):
        await hand.begin(delivery, token="w1.x")
    own.resume()
    attempt = await hand.begin(delivery, token="w1.x")
    assert attempt.grant.attempts == 1
    own.pause()
    with pytest.raises(BrokerUnavailable):
        await hand.complete(attempt)
    own.resume()
    assert await hand.complete(attempt) is Settled.ALREADY
    assert await raw(quick, "XLEN", "flows:a:results") == 2


async def test_a_restart_is_over_when_the_server_is_back(own: RedisServer, quick: Broker) -> None:
    hand = await Hand.ready(quick)
    entry = await send(quick, "e1")
    await hand.retry(await hand.begin(await hand.one()), 1000.0)
    await asyncio.gather(*(raw(quick, "PING") for _ in range(50)))
    waiting = asyncio.create_task(quick.reader.wait({"none": "0-0"}, 20.0))
    await asyncio.sleep(0.05)
    own.kill()
    with pytest.raises(BrokerUnavailable):
        await raw(quick, "PING")
    with pytest.raises(BrokerUnavailable):
        await waiting
    own.start()
    await asyncio.gather(*(raw(quick, "PING") for _ in range(50)))
    assert await raw(quick, "ZSCORE", KEYS.due, entry) is not None


async def test_a_blocking_read_outlasts_the_command_timeout_but_not_a_stopped_server(
    own: RedisServer, quick: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    import runtime.broker.connection

    assert await quick.reader.wait({STREAM: "$"}, 0.6) == set()
    monkeypatch.setattr(runtime.broker.connection, "BLOCKING_MARGIN", 0.2)
    own.pause()
    with pytest.raises(BrokerUnavailable):
        await quick.reader.wait({STREAM: "$"}, 0.1)
    own.resume()
    await send(quick, "e1")
    assert await quick.reader.wait({STREAM: "0-0"}, 5.0) == {STREAM}


async def test_errors_are_ours(own: RedisServer, quick: Broker) -> None:
    await raw(quick, "SET", "text", "x")
    with pytest.raises(BrokerError, match="WRONGTYPE") as wrong:
        await raw(quick, "XLEN", "text")
    assert not isinstance(wrong.value, BrokerUnavailable)
    with pytest.raises(GroupMissing):
        await raw(quick, "XREADGROUP", "GROUP", "g", "c", "STREAMS", "none", ">")
    replies = await quick.connection.pipeline([("PING",), ("XLEN", "text"), ("ECHO", "x")])
    assert (replies[0], replies[2]) == (b"PONG", b"x")
    assert isinstance(replies[1], BrokerError)
    with pytest.raises(BrokerError, match="cannot be sent"):
        await raw(quick, "SET", "k", None)
    own.execute("CONFIG", "SET", "requirepass", "hunter2")
    for url in (own.url, own.url.replace("//", "//:wrong@"), f"redis://127.0.0.1:{free_port()}/0"):
        stranger = Broker.connect(url, QUICK)
        with pytest.raises(BrokerUnavailable) as refused:
            await raw(stranger, "PING")
        assert "hunter2" not in refused.value.message
        await stranger.close()
    odd = Broker.connect(
        f"{own.url}?protocol=3&decode_responses=true&socket_timeout=1000".replace("//", "//:hunter2@"), QUICK
    )
    assert await raw(odd, "HGETALL", "none") == []
    own.pause()
    with pytest.raises(BrokerUnavailable):
        await raw(odd, "PING")
    own.resume()
    await odd.close()
    with pytest.raises(BrokerError, match="URL"):
        Broker.connect("http://x", QUICK)


# --- replies that come together ---------------------------------------------------------------------------------------


class Scripted:
    """A server that answers commands with what it was told to, in as many pieces; it reads all before it answers."""

    def __init__(self, *pieces: bytes, commands: int) -> None:
        self._pieces = pieces
        self._commands = commands

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser, got = hiredis.Reader(), 0
        while data := await reader.read(65536):
            parser.feed(data)
            while isinstance(command := parser.gets(), list):
                if command[0] == b"CLIENT":  # who speaks, told when the connection is made
                    writer.write(b"+OK\r\n")
                else:
                    got += 1
            if got == self._commands:
                got = 0
                for piece in self._pieces:
                    writer.write(piece)
                    await writer.drain()
        writer.close()

    async def answers(self) -> list[Any]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        broker = Broker.connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", QUICK)
        commands = (broker.connection.command("ECHO", n) for n in range(self._commands))
        try:
            return await asyncio.gather(*commands, return_exceptions=True)
        finally:
            await broker.close()
            server.close()


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    ("replies", "told"),
    [
        ([b"$1\r\na\r\n", b":2\r\n", b"*2\r\n:1\r\n-ERR x\r\n"], [b"a", 2, list]),
        ([b"+OK\r\n", b"-ERR no\r\n", b":3\r\n"], [b"OK", BrokerError, 3]),
        ([b"+OK\r\n", b"-LOADING not yet\r\n", b":3\r\n"], [b"OK", BrokerUnavailable, BrokerUnavailable]),
        ([b"+OK\r\n", b"?what\r\n", b":3\r\n"], [b"OK", BrokerUnavailable, BrokerUnavailable]),
        ([b"+OK\r\n", b"$100\r\nhalf", b""], [b"OK", BrokerUnavailable, BrokerUnavailable]),  # it comes too late
    ],
)
async def test_a_reply_that_comes_with_another_is_read_as_one_that_comes_alone(
    replies: list[bytes], told: list[Any], joined: bool
) -> None:
    pieces = [b"".join(replies)] if joined else replies
    answers = await Scripted(*pieces, commands=len(replies)).answers()
    for answer, expected in zip(answers, told, strict=True):
        assert isinstance(answer, expected) if isinstance(expected, type) else answer == expected
    assert not any(isinstance(answer, Exception) and not isinstance(answer, BrokerError) for answer in answers)


async def test_a_pipeline_of_one_command_goes_with_the_others(
    own: RedisServer, quick: Broker, exchanges: list[tuple[int, bytes]]
) -> None:
    await raw(quick, "SET", "text", "x")
    exchanges.clear()
    connection = quick.connection
    both = await asyncio.gather(connection.command("GET", "text"), connection.pipeline([("ECHO", "y")]))
    assert (both, [count for count, _ in exchanges]) == ([b"x", [b"y"]], [2])
    [wrong] = await connection.pipeline([("XLEN", "text")])
    assert isinstance(wrong, BrokerError) and "WRONGTYPE" in wrong.message
    assert await connection.run_all([call("glance", [f"{STREAM}"] * 4, "", "g", "")]) is not None  # sent whole at first
    with pytest.raises(BrokerError, match="cannot be sent"):
        await connection.pipeline([("SET", "k", None)])  # type: ignore[list-item]
    own.pause()
    with pytest.raises(BrokerUnavailable):
        await connection.pipeline([("PING",)])
    own.resume()
    assert await connection.pipeline([("PING",)]) == [b"PONG"]


class Sentinels:
    """Names one server as the primary, and remembers how often it was asked."""

    def __init__(self, port: int) -> None:
        self.primary = ("127.0.0.1", port)
        self.asked = 0

    async def discover_master(self, name: str) -> tuple[str, int]:
        """The server."""
        self.asked += 1
        return self.primary


@pytest.mark.parametrize("how", ["batch", "pipeline"])
async def test_the_sentinels_are_asked_again_about_a_primary_that_was_demoted(own: RedisServer, how: str) -> None:
    sentinels = Sentinels(own.port)
    kind = {"connection_class": SentinelManagedConnection}
    pools = [
        SentinelConnectionPool("name", cast("Any", sentinels), **address._client_options(kind, QUICK, timeout))
        for timeout in (2.0, None)
    ]
    connection = Server(Redis.from_pool(pools[0]), Redis.from_pool(pools[1]))

    async def write_behind_a_read() -> Any:
        if how == "pipeline":
            return (await connection.pipeline([("GET", "k"), ("SET", "k", "1")]))[1]
        both = [connection.command("GET", "k"), connection.command("SET", "k", "1")]
        return (await asyncio.gather(*both, return_exceptions=True))[1]

    assert await write_behind_a_read() == b"OK"
    before = sentinels.asked
    await connection.command("REPLICAOF", "127.0.0.1", 1)
    with suppress(BrokerUnavailable):
        assert isinstance(await write_behind_a_read(), BrokerUnavailable)
    await connection.command("REPLICAOF", "NO", "ONE")
    assert sentinels.asked > before
    assert await write_behind_a_read() == b"OK"
    await connection.close()


# --- out of memory --------------------------------------------------------------------------------------------------


async def test_c23_out_of_memory_new_work_is_refused_whole_and_all_else_goes_on(
    own: RedisServer, quick: Broker
) -> None:
    hand, gone = await Hand.ready(quick), await Hand.ready(quick, "gone")
    for n in range(7):
        await send(quick, f"e{n}")
    deliveries = await hand.fetch(5)
    tries = [await hand.begin(d) for d in deliveries[:4]]
    await gone.fetch(1)
    await hand.bury(tries.pop())
    (letter,) = await quick.dead_letters.list(DEAD)
    fields = (("event_id", "new"), ("payload", "{}"))
    await gone.expire()
    own.execute("CONFIG", "SET", "maxmemory", "1")
    before = sorted(own.execute("KEYS", "*"))

    for refused in (
        publish_one(quick, KEYS, STREAM, fields, event_id="new"),
        hand.begin(deliveries[4], token="w1.late"),
        quick.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter.id),
    ):
        with pytest.raises(BrokerUnavailable, match="memory"):
            await refused
    assert sorted(own.execute("KEYS", "*")) == before
    assert await raw(quick, "XLEN", DEAD) == 1

    assert (await hand.renew()).name == "RENEWED"
    assert len(await hand.fetch(1)) == 1
    assert await hand.complete(tries[0]) is Settled.DONE
    assert await hand.retry(tries[1]) is Settled.DONE
    assert await hand.bury(tries[2]) is Settled.DONE
    assert await quick.leases.unstarted(KEYS, worker="w1", ids=[deliveries[4].entry_id]) == 1
    assert (await sweep_under_pressure(quick)).moved == 1
    await quick.recovery.audit(KEYS)
    await quick.leases.leave(KEYS, worker="w1")
    assert (await quick.runs.cancel(KEYS, "e1")).name == "CANCELLED"
    assert (await quick.streams.counts([KEYS], [DEAD]))[0].dead == 2

    own.execute("CONFIG", "SET", "maxmemory", "0")
    assert (await publish_one(quick, KEYS, STREAM, fields, event_id="new")).new


async def sweep_under_pressure(broker: Broker):
    """A raw HSET would be refused: make the grace end by script."""
    source = b"#!lua flags=allow-oom\nredis.call('HSET', KEYS[1], '#grace', 0) local t = redis.call('TIME') "
    source += b"redis.call('HSET', KEYS[1], '#pulse', t[1] * 1000)"
    await raw(broker, "EVAL", source, 1, KEYS.obits)
    return await broker.recovery.sweep(KEYS, lease=60.0, gap=5.0, idle=600.0)


async def test_no_script_half_runs_when_memory_runs_out(own: RedisServer, quick: Broker) -> None:
    """Without its first line a script fails at its first write that needs memory, whatever came before."""
    own.execute("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(BrokerUnavailable):
        await raw(quick, "EVAL", b"#!lua\nredis.call('DEL', 'x') return 1", 0)
    assert await raw(quick, "EVAL", b"#!lua flags=allow-oom\nreturn redis.call('ZADD', 'z', 1, 'm')", 0) == 1
