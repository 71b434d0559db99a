"""The gateway's client for Python: ``Client``, and ``AsyncClient`` with the same methods.

    with Client("http://localhost:8800") as client:
        accepted = client.send("hello", {"input_value": "hi"})
        for event in client.stream(accepted.event_id):
            print(event.type, event.data)

A request that did not get an answer is repeated, with the same Idempotency-Key: the event is sent once.
"""

from runtime.client.asynchronous import AsyncClient
from runtime.client.protocol import Accepted, Event
from runtime.client.synchronous import Client
from runtime.errors import GatewayError, GatewayUnavailable

__all__ = ["Accepted", "AsyncClient", "Client", "Event", "GatewayError", "GatewayUnavailable"]
