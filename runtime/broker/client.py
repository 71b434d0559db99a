"""The door to Redis: one Broker per process and event loop, with a role for each kind of work."""

from __future__ import annotations

from runtime.broker.address import connect
from runtime.broker.api_keys import ApiKeys
from runtime.broker.chat import ChatStore
from runtime.broker.connection import Connection
from runtime.broker.dead_letters import DeadLetters
from runtime.broker.door import Door
from runtime.broker.feeds import Feeds
from runtime.broker.fleet import Fleet
from runtime.broker.gate import Gate
from runtime.broker.leases import Leases
from runtime.broker.pauses import Pauses
from runtime.broker.publisher import Publisher
from runtime.broker.reader import Reader
from runtime.broker.recovery import Recovery
from runtime.broker.runs import Runs
from runtime.broker.settlement import Settlement
from runtime.broker.streams import Streams
from runtime.settings import RedisSettings, RetentionSettings


class Broker:
    """Everything that Redis can be asked. Make it after the fork, inside the loop that uses it."""

    def __init__(self, connection: Connection, retention: RetentionSettings | None = None) -> None:
        retention = retention or RetentionSettings()
        self.connection = connection
        self.reader = Reader(connection)
        self.streams = Streams(connection)
        self.gate = Gate(connection, retention)
        self.leases = Leases(connection)
        self.settlement = Settlement(connection, retention)
        self.recovery = Recovery(connection)
        self.dead_letters = DeadLetters(connection, retention)
        self.runs = Runs(connection, retention)
        self.pauses = Pauses(connection, self.runs)
        self.feeds = Feeds(connection)
        self.publisher = Publisher(connection, retention)
        self.chat = ChatStore(connection)
        self.fleet = Fleet(connection)
        self.door = Door(connection)
        self.api_keys = ApiKeys(connection)

    @classmethod
    def connect(cls, url: str, settings: RedisSettings, retention: RetentionSettings | None = None) -> Broker:
        """A broker on ``url``; nothing is sent before the first command. Raises BrokerError for a wrong URL."""
        return cls(connect(url, settings), retention)

    async def close(self) -> None:
        """Close every connection."""
        await self.connection.close()
