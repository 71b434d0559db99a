"""Commands that are sent together, on real servers: each has its own reply and its own end."""

from __future__ import annotations

import asyncio
from math import ceil
from typing import Any

import pytest

from runtime.broker import batching
from runtime.broker.batching import LINES, MAX_BYTES, MAX_COMMANDS
from runtime.broker.client import Broker
from runtime.errors import BrokerError, BrokerUnavailable
from tests.support.real import until


async def test_what_is_wanted_at_once_is_sent_at_once(real_broker: Broker, exchanges: list[tuple[int, bytes]]) -> None:
    replies = await asyncio.gather(*(real_broker.connection.command("ECHO", n) for n in range(60)))
    assert replies == [b"%d" % n for n in range(60)]
    assert (sum(count for count, _ in exchanges), len(exchanges)) == (60, ceil(60 / MAX_COMMANDS))


async def test_each_meets_its_own_error(real_broker: Broker) -> None:
    connection = real_broker.connection
    await connection.command("SET", "text", "x")
    surrogate: Any = object()
    wrong, unsendable, fine = await asyncio.gather(
        connection.command("XLEN", "text"),
        connection.command("SET", "text", surrogate),
        connection.command("GET", "text"),
        return_exceptions=True,
    )
    assert isinstance(wrong, BrokerError) and "WRONGTYPE" in str(wrong)
    assert isinstance(unsendable, BrokerError) and "cannot be sent" in str(unsendable)
    assert fine == b"x"


async def test_a_large_command_goes_alone_and_whole(real_broker: Broker) -> None:
    connection = real_broker.connection
    large = b"x" * (3 * MAX_BYTES)
    *_, read = await asyncio.gather(
        *(connection.command("SET", f"large-{n}", large) for n in range(3)),
        *(connection.command("ECHO", n) for n in range(10)),
        connection.command("PING"),
    )
    assert read == b"PONG"
    assert [await connection.command("STRLEN", f"large-{n}") for n in range(3)] == [len(large)] * 3


async def test_one_that_takes_long_does_not_hold_the_others_up(real_broker: Broker) -> None:
    connection = real_broker.connection
    slow = [asyncio.create_task(connection.command("BLPOP", f"nothing-{n}", "5")) for n in range(LINES - 1)]
    for n in range(LINES - 1):  # each on a line of its own
        async with asyncio.timeout(5):
            assert await connection.command("ECHO", n) == b"%d" % n
    assert not any(task.done() for task in slow)
    for n in range(LINES - 1):
        await connection.command("RPUSH", f"nothing-{n}", "x")
    assert all(await asyncio.gather(*slow))


async def test_the_end_of_a_connection_is_told_to_all_on_it_and_the_next_are_served(real_broker: Broker) -> None:
    connection = real_broker.connection
    waits = [asyncio.create_task(connection.command("BLPOP", "nothing", "30")) for _ in range(3)]

    async def blocked() -> bool:
        return b"blocked_clients:1" in await connection.command("INFO", "clients")

    await until(blocked)
    await connection.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    for ended in await asyncio.gather(*waits, return_exceptions=True):
        assert isinstance(ended, BrokerUnavailable)

    async def served() -> bool:
        try:
            return bool(await connection.command("PING") == b"PONG")
        except BrokerUnavailable:
            return False

    await until(served)


async def test_a_line_keeps_its_connection_for_a_moment_and_gives_it_back(
    real_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection: Any = real_broker.connection
    pool, taken = connection._batches._pool, []
    take = pool.get_connection

    async def counted() -> Any:
        taken.append(1)
        return await take()

    monkeypatch.setattr(pool, "get_connection", counted)
    monkeypatch.setattr(batching, "HOLD", 60.0)
    for n in range(5):
        assert await connection.command("ECHO", n) == b"%d" % n
    assert len(taken) == 1
    assert await asyncio.gather(*(connection.command("ECHO", n) for n in range(3))) == [b"0", b"1", b"2"]
    assert len(taken) == 1
    monkeypatch.setattr(batching, "HOLD", 0.0)
    assert await connection.command("PING") == b"PONG"

    async def given_back() -> bool:
        return not pool._in_use_connections and not connection._batches._lines

    await until(given_back)


@pytest.fixture
async def kept(real_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Any]:
    """The connection that a line keeps, for as long as it takes: its name at the server, and itself."""
    monkeypatch.setattr(batching, "HOLD", 60.0)
    connection: Any = real_broker.connection
    name = await connection.command("CLIENT", "ID")
    [found] = connection._batches._pool._in_use_connections
    return name, found


async def test_a_connection_that_ends_while_it_is_kept_is_not_used(real_broker: Broker, kept: tuple[int, Any]) -> None:
    name, reader = kept[0], kept[1]._reader
    await real_broker.connection.pipeline([("CLIENT", "KILL", "ID", name, "SKIPME", "no"), ("PING",)])

    async def ended() -> bool:
        return bool(reader.at_eof() or reader.exception() is not None)

    await until(ended)
    assert await real_broker.connection.command("CLIENT", "ID") != name


async def test_a_connection_over_which_more_has_come_than_was_asked_for_is_not_used(
    real_broker: Broker, kept: tuple[int, Any]
) -> None:
    kept[1]._reader.feed_data(b"+EXTRA\r\n")
    other = await real_broker.connection.command("CLIENT", "ID")
    assert isinstance(other, int) and other != kept[0]


async def test_commands_of_one_turn_wake_one_line(real_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "HOLD", 60.0)
    connection: Any = real_broker.connection
    batches = connection._batches
    wait = asyncio.create_task(connection.command("BLPOP", "nothing", "30"))

    async def blocked() -> bool:
        return b"blocked_clients:1" in await connection.command("INFO", "clients")

    async def idle() -> bool:
        return len(batches._idle) == len(batches._lines)

    await until(blocked)
    await connection.command("RPUSH", "nothing", "x")
    await wait
    await until(idle)
    before = len(batches._idle)
    await asyncio.gather(*(connection.command("PING") for _ in range(4)))
    await until(idle)
    assert len(batches._idle) == before > 1


async def test_nothing_is_sent_behind_a_command_whose_reply_may_be_large(
    real_broker: Broker, exchanges: list[tuple[int, bytes]]
) -> None:
    batches = real_broker.connection._batches  # type: ignore[attr-defined]  it is one server
    texts = ["large-1", "small-1", "small-2", "large-2", "small-3"]
    asked = [batches.command("ECHO", text, last=text.startswith("large")) for text in texts]
    assert await asyncio.gather(*asked) == [text.encode() for text in texts]
    assert all(b"large" not in packed.rpartition(b"ECHO")[0] for _, packed in exchanges)


async def test_closing_ends_a_line_that_is_kept(real_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "HOLD", 60.0)
    assert await real_broker.connection.command("PING") == b"PONG"
    async with asyncio.timeout(5):
        await real_broker.connection.close()


async def test_closing_tells_those_who_wait(real_broker: Broker) -> None:
    connection = real_broker.connection
    wait = asyncio.create_task(connection.command("BLPOP", "nothing", "30"))

    async def blocked() -> bool:
        return b"blocked_clients:1" in await connection.command("INFO", "clients")

    await until(blocked)
    await connection.close()
    with pytest.raises(BrokerUnavailable):
        await wait
