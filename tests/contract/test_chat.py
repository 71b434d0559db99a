"""Chat memory: committed by settle, scoped by tenant and session, bounded."""

from __future__ import annotations

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.settings import RetentionSettings
from shared_models.chat import ChatCommit, ChatOp
from tests.support.hand import KEYS, Hand, raw, send


def said(message_id: str, text: str = "") -> ChatOp:
    return ChatOp("append", {"id": message_id, "text": text})


class Session:
    def __init__(self, broker: Broker, hand: Hand) -> None:
        self.broker, self.hand, self.n = broker, hand, 0

    async def commit(self, *ops: ChatOp, session: str = "s") -> None:
        self.n += 1
        await send(self.broker, f"e{self.n}")
        attempt = await self.hand.begin(await self.hand.one())
        await self.hand.complete(attempt, chat=[ChatCommit(session, ops)])

    async def texts(self, session: str = "s") -> list[str]:
        return [m["text"] for m in await self.broker.chat.load(KEYS, tenant=None, session=session)]


async def opened(broker: Broker) -> Session:
    return Session(broker, await Hand.ready(broker))


async def test_append_in_order(broker: Broker) -> None:
    chat = await opened(broker)
    await chat.commit(said("1", "a"), said("2", "b\n\u2028é\ud800"))
    await chat.commit(said("3", "c"))
    assert await chat.texts() == ["a", "b\n\u2028é\ud800", "c"]
    assert await chat.texts("other") == []


async def test_replace_remove_clear(broker: Broker) -> None:
    chat = await opened(broker)
    await chat.commit(said("1", "a"), said("2", "b"), said("3", "c"))
    await chat.commit(ChatOp("replace", {"id": "2", "text": "B"}), said("4", "d"), ChatOp("remove", {"id": "1"}))
    assert await chat.texts() == ["B", "c", "d"]
    await chat.commit(said("5", "e"), ChatOp("replace", {"id": "5", "text": "E"}), ChatOp("remove", {"id": "none"}))
    assert await chat.texts() == ["B", "c", "d", "E"]
    await chat.commit(ChatOp("replace", {"id": "9", "text": "new"}))
    assert await chat.texts() == ["B", "c", "d", "E", "new"]
    await chat.commit(said("6", "f"), ChatOp("clear"), said("7", "g"))
    assert await chat.texts() == ["g"]
    await chat.commit(ChatOp("remove", {"id": "7"}))
    assert await chat.texts() == []
    await chat.commit(ChatOp("clear"))
    assert await chat.texts() == []


async def test_several_sessions_of_one_run(broker: Broker) -> None:
    chat = await opened(broker)
    await send(broker, "x")
    attempt = await chat.hand.begin(await chat.hand.one())
    commits = [ChatCommit("s1", (said("1", "a"),)), ChatCommit("s2", (said("2", "b"), said("3", "c")))]
    await chat.hand.complete(attempt, chat=commits)
    assert (await chat.texts("s1"), await chat.texts("s2")) == (["a"], ["b", "c"])


async def test_a_failed_attempt_leaves_nothing_and_a_repeat_does_not_double(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    chat = Session(broker, hand)
    await send(broker, "x")
    await hand.retry(await hand.begin(await hand.one()))
    attempt = await hand.begin(await hand.one())
    for _ in range(2):
        await hand.complete(attempt, chat=[ChatCommit("s", (said("1", "a"),))])
    assert await chat.texts() == ["a"]


async def test_bounded_in_length_and_time(broker: Broker) -> None:
    small = Broker(broker.connection, RetentionSettings(chat=50.0, chat_messages=3))
    chat = await opened(small)
    await chat.commit(*[said(str(n), str(n)) for n in range(5)])
    assert await chat.texts() == ["2", "3", "4"]
    await chat.commit(ChatOp("replace", {"id": "2", "text": "x"}), said("5", "5"))
    assert await chat.texts() == ["3", "4", "5"]
    assert 0 < await raw(broker, "PTTL", KEYS.chat(None, "s")) <= 50_000


async def test_a_key_of_the_wrong_type_refuses_the_whole(broker: Broker) -> None:
    import pytest

    from runtime.errors import PublishRefused

    chat = await opened(broker)
    await raw(broker, "SET", KEYS.chat(None, "s"), "x")
    with pytest.raises(PublishRefused):
        await chat.commit(said("1", "a"))


def test_no_two_pairs_of_tenant_and_session_share_a_key() -> None:
    pairs = [
        (None, "a"),
        ("a", "b:c"),
        ("a:b", "c"),
        ("a%3Ab", "c"),
        ("a", "b"),
        ("", "x:y"),
        ("x", "y"),
        ("x" * 200, "y"),
    ]
    assert len({RouteKeys("s", "g").chat(*pair) for pair in pairs}) == len(pairs)
