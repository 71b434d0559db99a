"""Every key that belongs to one stream and group. PROTOCOL.md 1 is the catalogue; this is its only spelling in code."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared_models.names import KEY_PREFIX, key_part, key_prefix, publish_prefix

FLEET_WORKERS = f"{KEY_PREFIX}{{fleet}}:workers"
"""Hash: worker name to its report (JSON)."""
FLEET_SEEN = f"{KEY_PREFIX}{{fleet}}:seen"
"""Zset: worker name to the time (ms) its report ends."""
FLEET_ROUTES = f"{KEY_PREFIX}{{fleet}}:routes"
"""Hash: route name to where it reads and writes (JSON)."""

API_KEYS = f"{KEY_PREFIX}{{fleet}}:keys"
"""Hash: id of a gateway's API key to what is kept of it (JSON)."""


@dataclass(frozen=True, slots=True)
class RouteKeys:
    """The keys of one stream and consumer group. All lie in the stream's own slot."""

    stream: str
    group: str
    prefix: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", key_prefix(self.stream, self.group))

    @property
    def due(self) -> str:
        """Zset: parked entry id to the time (ms) it is due."""
        return f"{self.prefix}due"

    @property
    def leases(self) -> str:
        """Zset: worker to the time (ms) its lease ends; negative: the time it was declared dead."""
        return f"{self.prefix}leases"

    @property
    def obits(self) -> str:
        """Hash: dead worker to whom its death is blamed on; also ``#pulse`` and ``#grace`` of the sweep."""
        return f"{self.prefix}obits"

    @property
    def blocked(self) -> str:
        """Hash: why the route is blocked (code, reason, component_id, since, next_probe). Absent: it is not."""
        return f"{self.prefix}blocked"

    @property
    def runs(self) -> str:
        """Zset: event id to the time (ms) it last began, for listings."""
        return f"{self.prefix}runs"

    def gate(self, key: str) -> str:
        """Hash: the state machine of the run that holds this idempotency key."""
        return f"{self.prefix}gate:{key_part(key)}"

    def run(self, event_id: str) -> str:
        """Hash: the record of one event's run."""
        return f"{self.prefix}run:{key_part(event_id)}"

    def feed(self, event_id: str) -> str:
        """Stream: the progress of one event's run."""
        return f"{self.prefix}feed:{key_part(event_id)}"

    def rate(self, tenant: str | None) -> str:
        """String: the time (ms) of the route's rate, or of one tenant's on it."""
        return f"{self.prefix}rate" if tenant is None else f"{self.prefix}rate:{key_part(tenant)}"

    def open(self, tenant: str) -> str:
        """Zset: a tenant's events that may not have ended, to the time (ms) they were taken; where that is bounded."""
        return f"{self.prefix}open:{key_part(tenant)}"

    def watched(self, event_id: str) -> str:
        """String: somebody follows the event's run now."""
        return f"{self.prefix}watch:{key_part(event_id)}"

    def chat(self, tenant: str | None, session: str) -> str:
        """List: the committed chat history of a session. No two pairs of tenant and session share a key."""
        # A colon in a tenant's name would let ("a:b", "c") read ("a", "b:c").
        scope = (tenant or "").replace("%", "%25").replace(":", "%3A")
        return f"{self.prefix}chat:{key_part(scope)}:{key_part(session)}"


def published(stream: str, event_id: str) -> str:
    """String: the entry id under which an event was published to a stream."""
    return f"{publish_prefix(stream)}{key_part(event_id)}"
