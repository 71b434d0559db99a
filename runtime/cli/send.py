"""``headrace send``: publish events and, if asked, wait for what becomes of them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.options import AsJson, Flows, RedisUrl, wait_for
from runtime.cli.output import FAILED, json_array, note, progress, say, say_json
from runtime.cli.remote import GatewayUrl, gateway_of

if TYPE_CHECKING:
    from runtime.broker.client import Broker
    from runtime.broker.fleet import RouteEntry
    from runtime.broker.outcome import RunMeta
    from runtime.cli.directory import Directory
    from shared_models.envelope import EventEnvelope
    from shared_models.result import RunRecord

BATCH = 500
"""Events published in one round trip."""


def send(
    *,
    target: Annotated[str, typer.Argument(metavar="ROUTE|STREAM", show_default=False)],
    source: Annotated[str | None, typer.Argument(metavar="[-]", help="- reads stdin.", show_default=False)] = None,
    text: Annotated[str | None, typer.Option("--input", "-i", metavar="TEXT", help="The flow's text input.")] = None,
    payload: Annotated[str | None, typer.Option("--payload", "-p", metavar="JSON", help="The whole payload.")] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Payload (a JSON object) or text, from a file.")
    ] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One event for each line of the file or of stdin.")] = False,
    session: Annotated[str | None, typer.Option("--session", "-s", help="Session id: shares chat memory.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Idempotency key: the same key runs once.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Tenant id: keeps memories apart.")] = None,
    wait: Annotated[
        float | None, typer.Option("--wait", "-w", metavar="SECONDS", min=0, help="Wait for the result and print it.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Wait for all that grows from the event, over routes; print the last results."),
    ] = False,
    flows: Flows = None,
    redis_url: RedisUrl = None,
    gateway: GatewayUrl = None,
    as_json: AsJson = False,
) -> None:
    """Send an event to a route or a stream. Prints its event id, or with --wait or --follow what became of it.

    With --json, --wait prints the run's record; --follow and --jsonl print an array of records.
    """
    from runtime.cli import payloads

    if jsonl:
        if text is not None or payload is not None or key is not None:
            raise typer.BadParameter(
                "--jsonl takes events from --file or stdin; --input, --payload and --key are for one"
            )
        bodies = payloads.lines(payloads.checked_source(source) or file or payloads.STDIN)
    else:
        bodies = iter([payloads.single(source, text, payload, file)])
    events = (envelope(body, session=session, key=key, tenant=tenant) for body in bodies)
    sender = Sender(target, many=jsonl, json=as_json, seconds=wait, follow=follow)
    url = gateway_of(gateway, redis_url)
    if url and follow:
        raise typer.BadParameter("--follow looks into Redis; through a gateway there is --wait")
    if not wait_for(sender.through(url, events) if url else sender.run(events, redis_url, flows)):
        raise typer.Exit(FAILED)


def envelope(
    payload: dict[str, Any], *, session: str | None = None, key: str | None = None, tenant: str | None = None
) -> EventEnvelope:
    """A new event with this payload: its own root, with an id of its own."""
    from shared_models.codec import new_event_id
    from shared_models.envelope import EventEnvelope

    event_id = new_event_id()
    return EventEnvelope(
        event_id=event_id,
        root_id=event_id,
        idempotency_key=key or event_id,
        session_id=session,
        tenant_id=tenant,
        source="headrace send",
        timestamp=time.time_ns() // 1_000_000,
        payload=payload,
    )


class Sender:
    """One `headrace send`: finds the target, publishes in batches, waits, prints."""

    def __init__(self, target: str, *, many: bool, json: bool, seconds: float | None, follow: bool) -> None:
        self._target = target
        self._many = many
        self._json = json
        self._follow = follow
        self._seconds = seconds

    async def run(self, events: Iterator[EventEnvelope], redis_url: str | None, flows: Path | None) -> bool:
        """Whether all went well: everything was published and, where it was waited for, completed."""
        from runtime.cli.connection import connected, read_settings
        from runtime.cli.directory import Directory

        settings = read_settings()
        async with connected(redis_url, settings) as broker:
            directory = await Directory.load(broker, flows or settings.flows)
            stream, routes = await resolve(broker, directory, self._target)
            waits = self._follow or self._seconds is not None
            if waits and not routes:
                note(f"headrace: no route reads {stream}, so there is nothing to wait for; nothing was sent")
                return False
            published = publish(broker, stream, routes, events, bar=self._many)
            if waits:
                return await self._wait(broker, directory, routes, [event_id async for event_id, _ in published])
            with ExitStack() as stack:
                out = self._printer(stack, array=self._many)
                async for event_id, entry_id in published:
                    route = routes[0].route if routes else None
                    out(event_id, {"event_id": event_id, "entry_id": entry_id, "stream": stream, "route": route})
            return True

    async def through(self, url: str, events: Iterator[EventEnvelope]) -> bool:
        """As ``run``, through a gateway: the target is a route."""
        from runtime.cli.remote import send
        from runtime.cli.results import failure_of, text_of

        good = True
        with ExitStack() as stack:
            out = self._printer(stack, array=self._many)
            async for event_id, route, record in send(url, self._target, events, seconds=self._seconds):
                if self._seconds is None:
                    out(event_id, {"event_id": event_id, "route": route})
                elif record is None:
                    good = False
                    note(f"headrace: {event_id} on route {route} has not ended after {self._seconds:g} s; it goes on")
                else:
                    if failure := failure_of(record):
                        good = False
                        note(f"headrace: {failure}")
                    if self._json or not failure:
                        out("" if self._json else text_of(record), record)
        return good

    async def _wait(
        self, broker: Broker, directory: Directory, routes: Sequence[RouteEntry], event_ids: Sequence[str]
    ) -> bool:
        from runtime.cli.results import Patience, failure_of, tell_waiting, text_of
        from runtime.cli.waiting import Deadline, Target, follow

        targets = [Target(route, event_id) for event_id in event_ids for route in routes]
        good = True
        with ExitStack() as stack:
            out = self._printer(stack, array=self._many or self._follow or len(targets) > 1)

            def seen(record: RunRecord, last: bool) -> None:
                nonlocal good
                if failure := failure_of(record):
                    good = False
                    note(f"headrace: {failure}")
                if self._json or (last and not failure):
                    out("" if self._json else text_of(record), record)

            readers = directory.readers if self._follow else _no_readers
            waiting = await follow(
                broker, targets, readers=readers, deadline=Deadline(self._seconds), seen=seen, silent=Patience(broker)
            )
        for target in waiting:
            await tell_waiting(broker, target, self._seconds)
        return good and not waiting

    def _printer(self, stack: ExitStack, *, array: bool) -> Callable[[str, object], object]:
        if not self._json:
            return lambda text, value: say(text)
        add = stack.enter_context(json_array()) if array else say_json
        return lambda text, value: add(value)


def _no_readers(stream: str) -> Sequence[RouteEntry]:
    return ()


async def resolve(broker: Broker, directory: Directory, target: str) -> tuple[str, list[RouteEntry]]:
    """The stream that ``target`` means, and the routes that read it.

    A route's name comes first, then a stream that a route reads, then any name with a colon or that Redis has.
    Raises RouteNotFound.
    """
    from runtime.broker.server import key_type
    from runtime.cli.directory import not_found
    from shared_models.names import check_stream_name

    if route := directory.routes.get(target):
        return route.stream, [route]
    readers = directory.readers(target)
    if readers or ":" in target or await key_type(broker, target) == "stream":
        return check_stream_name(target), readers
    raise not_found(f"{target!r} is neither a route nor a stream", target, directory.routes)


async def publish(
    broker: Broker, stream: str, routes: Sequence[RouteEntry], events: Iterator[EventEnvelope], *, bar: bool = False
) -> AsyncIterator[tuple[str, str]]:
    """Publish the events, a batch in a round trip; yields the event id and the entry id of each."""
    from runtime.broker.publisher import PublishRequest
    from runtime.cli.directory import keys_of
    from runtime.errors import BrokerError
    from shared_models import codec

    route = routes[0] if routes else None
    keys = keys_of(route) if route else None
    with progress("sending", shown=bar) as advance:
        while batch := list(islice(events, BATCH)):
            requests = [
                PublishRequest(stream, codec.encode(event), event.event_id, keys, _meta(event, route))
                for event in batch
            ]
            entries = await broker.publisher.publish_many(requests)
            for event, entry in zip(batch, entries, strict=True):
                if isinstance(entry, BrokerError):
                    raise entry
                yield event.event_id, entry.entry_id
            advance(len(batch))


def _meta(event: EventEnvelope, route: RouteEntry | None) -> RunMeta | None:
    from runtime.broker.outcome import RunMeta

    if route is None:
        return None
    return RunMeta(
        route=route.route,
        version=route.version,
        root_id=event.root_id,
        session_id=event.session_id,
        tenant_id=event.tenant_id,
        key=event.idempotency_key,
    )
