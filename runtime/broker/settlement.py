"""Settling: the one write that records an outcome."""

from __future__ import annotations

from runtime.broker.connection import Connection
from runtime.broker.delivery import Delivery
from runtime.broker.gate import Claim
from runtime.broker.outcome import Outcome, RunMeta, Settled
from runtime.settings import RetentionSettings


class Settlement:
    """Records outcomes, each in one atomic call."""

    def __init__(self, connection: Connection, retention: RetentionSettings) -> None:
        self._connection = connection
        self._retention = retention

    async def settle(
        self,
        claim: Claim,
        outcome: Outcome,
        *,
        delivery: Delivery,
        attempts: int,
        meta: RunMeta,
        dead_letter_stream: str,
    ) -> Settled:
        """Record the outcome. Repeat it unchanged until it is answered.

        Raises PublishRefused (nothing was written: a target is not a stream) and BrokerUnavailable.
        """
        raise NotImplementedError
