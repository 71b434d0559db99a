"""What the contract's tests share."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.broker.batching import Batches


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    """The batches that are sent: of how many commands each is, and its bytes."""
    sent: list[tuple[int, bytes]] = []
    exchange = Batches._exchange

    async def noted(self: Batches, connection: Any, batch: list[Any], packed: bytes) -> bool:
        sent.append((len(batch), packed))
        return await exchange(self, connection, batch, packed)

    monkeypatch.setattr(Batches, "_exchange", noted)
    return sent
