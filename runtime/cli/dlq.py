"""``headrace dlq``: the events that could not be processed. Look at them, send them again, or drop them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.options import AsJson, Flows, RedisUrl, RouteOption, group, wait_for
from runtime.cli.output import FAILED, note, say, say_json, shorten, table, when

if TYPE_CHECKING:
    from runtime.broker.client import Broker
    from runtime.cli.directory import Directory
    from shared_models.dead_letter import DeadLetter

app = group("The events that could not be processed.")

PAGE = 200
"""Dead letters read in one round trip."""

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All of them (of the route, if one is given).")]
Code = Annotated[str | None, typer.Option("--error", "-e", metavar="CODE", help="Those with this reason code.")]


@app.command("list")
def list_(
    *,
    route: RouteOption = None,
    code: Code = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 100,
    flows: Flows = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the newest first. What looks like a secret is masked."""
    letters = wait_for(_list(route, code, count, flows, redis_url))
    if as_json:
        say_json([shown(letter) for letter in letters])
        return
    table(
        ["id", "route", "event", "died", "attempts", "code", "reason"],
        ([x.id, x.route, x.event_id, when(x.died_at), x.attempts, x.code, shorten(_masked(x.reason))] for x in letters),
        empty="no dead letters",
    )


@app.command("show")
def show(
    *,
    letter_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    route: RouteOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not mask what looks like a secret.")] = False,
    flows: Flows = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: what failed and how, and the event's own fields."""
    letter = wait_for(_show(letter_id, route, flows, redis_url))
    fields = shown(letter, raw=raw)
    if as_json:
        say_json(fields)
        return
    _print(fields)


@app.command("requeue")
def requeue(
    *,
    ids: Ids = None,
    route: RouteOption = None,
    all_: All = False,
    code: Code = None,
    flows: Flows = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Send dead letters again, with all attempts before them: by id, by --error, by --route, or --all."""
    choice = Choice.of(ids, route, code, all_=all_ or route is not None)
    done = wait_for(_requeue(choice, flows, redis_url))
    _report(done, "requeued", as_json, fields=("id", "route", "event_id", "entry_id"))
    if any(item.get("failed") for item in done):
        raise typer.Exit(FAILED)


@app.command("drop")
def drop(
    *,
    ids: Ids = None,
    route: RouteOption = None,
    all_: All = False,
    code: Code = None,
    flows: Flows = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters for good: by id, by --error, or --all."""
    choice = Choice.of(ids, route, code, all_=all_)
    done = wait_for(_drop(choice, flows, redis_url))
    _report(done, "dropped", as_json, fields=("id", "route", "event_id"))
    if any(item.get("failed") for item in done):
        raise typer.Exit(FAILED)


@app.command("edit")
def edit(
    *,
    letter_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    payload: Annotated[str, typer.Option("--payload", "-p", metavar="JSON", show_default=False)],
    route: RouteOption = None,
    flows: Flows = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Send a dead letter again with another payload. Its ids, session and tenant stay."""
    from runtime.cli.payloads import parse_object

    body = parse_object(payload, where="--payload")
    done = wait_for(_edit(letter_id, route, body, flows, redis_url))
    _report([done], "requeued", as_json, fields=("id", "route", "event_id", "entry_id"))
    if done.get("failed"):
        raise typer.Exit(FAILED)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters are meant."""

    ids: frozenset[str]
    route: str | None
    code: str | None

    @classmethod
    def of(cls, ids: Sequence[str] | None, route: str | None, code: str | None, *, all_: bool) -> Choice:
        """The choice that the options make; nothing is ever meant by default."""
        if not (ids or code or all_):
            raise typer.BadParameter("say which: ids, --error CODE or --all")
        return cls(frozenset(ids or ()), route, code)

    def means(self, letter: DeadLetter) -> bool:
        """Whether this one is meant."""
        return (
            (not self.ids or letter.id in self.ids)
            and self.route in (None, letter.route)
            and self.code in (None, letter.code)
        )


def shown(letter: DeadLetter, *, raw: bool = False) -> dict[str, Any]:
    """A dead letter for the eye: what looks like a secret is masked unless ``raw``."""
    from runtime.telemetry.redact import mask

    fields = letter.model_dump(mode="json")
    masked: dict[str, Any] = fields if raw else mask(fields)
    return masked


def _masked(text: str) -> str:
    from runtime.telemetry.redact import mask_text

    return mask_text(text)


@asynccontextmanager
async def _opened(flows: Path | None, redis_url: str | None) -> AsyncIterator[tuple[Broker, Directory]]:
    from runtime.cli.connection import connected, read_settings
    from runtime.cli.directory import Directory

    settings = read_settings()
    async with connected(redis_url, settings) as broker:
        yield broker, await Directory.load(broker, flows or settings.flows)


async def _each(broker: Broker, directory: Directory, choice: Choice) -> AsyncIterator[tuple[str, DeadLetter]]:
    """The dead letters that are meant, each with its stream; of each stream the oldest first."""
    for stream in dict.fromkeys(entry.dead_letters for entry in directory.chosen(choice.route)):
        after = "0-0"
        while page := await broker.dead_letters.list(stream, count=PAGE, after=after):
            after = page[-1].id
            for letter in page:
                if choice.means(letter):
                    yield stream, letter


async def _list(
    route: str | None, code: str | None, count: int, flows: Path | None, redis_url: str | None
) -> list[DeadLetter]:
    async with _opened(flows, redis_url) as (broker, directory):
        letters = [x async for _, x in _each(broker, directory, Choice(frozenset(), route, code))]
    return sorted(letters, key=lambda x: (x.died_at, x.id), reverse=True)[:count]


async def _show(letter_id: str, route: str | None, flows: Path | None, redis_url: str | None) -> DeadLetter:
    async with _opened(flows, redis_url) as (broker, directory):
        return (await _one(broker, directory, letter_id, route))[1]


async def _one(broker: Broker, directory: Directory, letter_id: str, route: str | None) -> tuple[str, DeadLetter]:
    from runtime.errors import RouteNotFound

    found: list[tuple[str, DeadLetter]] = []
    for stream in dict.fromkeys(entry.dead_letters for entry in directory.chosen(route)):
        letter = await broker.dead_letters.get(stream, letter_id)
        if letter is not None and route in (None, letter.route):
            found.append((stream, letter))
    if not found:
        raise RouteNotFound(f"there is no dead letter {letter_id!r}" + (f" of route {route}" if route else ""))
    if len(found) > 1:
        routes = ", ".join(letter.route for _, letter in found)
        raise RouteNotFound(f"more than one route has a dead letter {letter_id!r}: name one with --route ({routes})")
    return found[0]


async def _requeue(choice: Choice, flows: Path | None, redis_url: str | None) -> list[dict[str, Any]]:
    async with _opened(flows, redis_url) as (broker, directory):
        # All are known before the first is sent: one that dies again at once must not be met a second time.
        chosen = [pair async for pair in _each(broker, directory, choice)]
        done = [await _send_again(broker, directory, stream, letter) for stream, letter in chosen]
    return done + _missing(choice, chosen)


async def _edit(
    letter_id: str, route: str | None, payload: dict[str, Any], flows: Path | None, redis_url: str | None
) -> dict[str, Any]:
    async with _opened(flows, redis_url) as (broker, directory):
        stream, letter = await _one(broker, directory, letter_id, route)
        fields = await broker.dead_letters.fields(stream, letter_id) or ()
        return await _send_again(broker, directory, stream, letter, fields=edited(fields, letter, payload))


async def _send_again(
    broker: Broker,
    directory: Directory,
    stream: str,
    letter: DeadLetter,
    fields: Sequence[tuple[bytes, bytes]] | None = None,
) -> dict[str, Any]:
    from runtime.cli.directory import keys_of

    told = {"id": letter.id, "route": letter.route, "event_id": letter.event_id, "entry_id": None}
    entry = directory.routes.get(letter.route)
    if entry is None:
        return {**told, "failed": f"route {letter.route} is not registered any more"}
    again = await broker.dead_letters.requeue(keys_of(entry), stream=stream, dead_letter_id=letter.id, fields=fields)
    if again.entry_id is None:
        return {**told, "failed": "it is gone: requeued or dropped by another"}
    return {**told, "event_id": again.event_id or letter.event_id, "entry_id": again.entry_id}


async def _drop(choice: Choice, flows: Path | None, redis_url: str | None) -> list[dict[str, Any]]:
    async with _opened(flows, redis_url) as (broker, directory):
        chosen = [pair async for pair in _each(broker, directory, choice)]
        for stream in dict.fromkeys(stream for stream, _ in chosen):
            await broker.dead_letters.drop(stream, [letter.id for s, letter in chosen if s == stream])
    told = [{"id": x.id, "route": x.route, "event_id": x.event_id} for _, x in chosen]
    return told + _missing(choice, chosen)


def _missing(choice: Choice, chosen: Sequence[tuple[str, DeadLetter]]) -> list[dict[str, Any]]:
    absent = choice.ids - {letter.id for _, letter in chosen}
    return [
        {"id": x, "route": None, "event_id": None, "failed": "there is no such dead letter"} for x in sorted(absent)
    ]


def edited(
    fields: Sequence[tuple[bytes, bytes]], letter: DeadLetter, payload: dict[str, Any]
) -> tuple[tuple[bytes, bytes], ...]:
    """The entry's fields with another payload. Where it could not be decoded, only its ids are kept."""
    from shared_models import codec
    from shared_models.envelope import EventEnvelope
    from shared_models.errors import ContractError

    try:
        envelope = codec.decode(fields, stream=letter.stream, entry_id=letter.entry_id, max_payload=2**31, now_ms=0)
    except ContractError:
        event_id = letter.event_id
        envelope = EventEnvelope(event_id=event_id, root_id=letter.root_id or event_id, idempotency_key=event_id)
    changed = envelope.model_copy(update={"payload": payload, "expires_at": None})
    return tuple((name.encode(), value.encode()) for name, value in codec.encode(changed))


def _report(done: Sequence[dict[str, Any]], verb: str, as_json: bool, *, fields: Sequence[str]) -> None:
    good = [item for item in done if not item.get("failed")]
    for item in done:
        if reason := item.get("failed"):
            note(f"headrace: {item['id']} was not {verb}: {reason}")
    if as_json:
        say_json([{name: item.get(name) for name in fields} for item in good])
        return
    for item in good:
        say(f"{verb} {item['id']} ({item['route']}, event {item['event_id']})")
    if not done:
        note(f"nothing to be {verb}")


def _print(letter: dict[str, Any]) -> None:
    error = letter["error"]
    component = " ".join(x for x in (error.get("component_name"), error.get("component_id")) if x)
    rows = [
        ("id", letter["id"]),
        ("route", letter["route"]),
        ("event", letter["event_id"]),
        ("stream", f"{letter['stream']}, entry {letter['entry_id']}"),
        ("died", when(letter["died_at"])),
        ("attempts", letter["attempts"]),
        ("code", letter["code"]),
        ("reason", letter["reason"]),
        ("component", component),
        ("exception", error.get("exception_type")),
        ("version", (letter["version"] or "")[:12]),
        ("worker", letter["worker"]),
    ]
    for name, value in rows:
        if value not in (None, ""):
            say(f"{name + ':':<12}{value}")
    if error.get("traceback"):
        say(f"\n{error['traceback'].rstrip()}\n")
    say("fields:")
    for name, value in letter["fields"].items():
        say(f"  {name}: {value}")
    note(f"\nSend it again with: headrace dlq requeue {letter['id']}")
