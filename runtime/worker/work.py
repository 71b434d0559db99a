"""One delivery on its way: what the steps hand to each other."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.broker.delivery import Delivery
from runtime.broker.gate import Claim
from runtime.broker.outcome import RunMeta
from runtime.worker.flights import Flight
from runtime.worker.lanes import ActiveRoute
from shared_models.envelope import EventEnvelope
from shared_models.errors import HeadraceError


@dataclass(slots=True)
class Work:
    """A delivery that was taken in. ``poison`` says why it cannot be run; else there is an ``envelope``.

    ``attempts`` counts this one; ``followed``: somebody followed the run as it began.
    """

    flight: Flight
    delivery: Delivery
    active: ActiveRoute
    claim: Claim
    meta: RunMeta
    envelope: EventEnvelope | None
    poison: HeadraceError | None
    attempts: int = 0
    followed: bool = False
