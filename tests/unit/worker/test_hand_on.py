"""What children held is handed on once every excuse is written, or never will be."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from runtime.errors import BrokerUnavailable
from runtime.worker.hand_on import HandOn


async def test_an_excuse_that_fails_does_not_end_the_wait_for_the_others() -> None:
    written: list[str] = []
    failed, late = asyncio.Event(), asyncio.Event()

    async def excuse(keys: Any, *, worker: str) -> None:
        if worker == "away":
            failed.set()
            raise BrokerUnavailable("away")
        await late.wait()
        written.append("excuse")

    async def declare_dead(keys: Any, **_: Any) -> Any:
        written.append("death")
        return SimpleNamespace(poison=(), moved=0)

    async def withdraw(worker: str) -> None:
        pass

    broker = SimpleNamespace(
        leases=SimpleNamespace(excuse=excuse),
        recovery=SimpleNamespace(declare_dead=declare_dead),
        fleet=SimpleNamespace(withdraw=withdraw),
    )
    children = [SimpleNamespace(name=name, keys=["k"], blame=None) for name in ("away", "slow")]
    hand_on = HandOn(broker, children)
    excusing = asyncio.create_task(hand_on.excuse())
    await failed.wait()
    handing = asyncio.create_task(hand_on.all_of(children[1]))
    for _ in range(10):
        await asyncio.sleep(0)
    late.set()
    await asyncio.gather(excusing, handing)
    assert written == ["excuse", "death"]
