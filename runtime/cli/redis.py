"""``headrace redis``: a small client, for machines that have no redis-cli. It prints as redis-cli does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.options import AsJson, RedisUrl, wait_for
from runtime.cli.output import FAILED, note, say, say_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.broker.console import Console, Reply

CONTEXT = {"ignore_unknown_options": True, "allow_interspersed_args": False}

_STREAMING = frozenset({"monitor", "subscribe", "psubscribe", "ssubscribe"})


def redis(
    *,
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND [ARGS]...", show_default=False)] = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Send a command to Redis and print the reply. Without one, commands are read from stdin, one a line.

    Options come before the command: headrace redis --json XRANGE flows:hello - +
    """
    if not wait_for(_redis(command, redis_url, as_json)):
        raise typer.Exit(FAILED)


async def _redis(command: list[str] | None, redis_url: str | None, as_json: bool) -> bool:
    from runtime.broker.console import Console
    from runtime.cli.connection import find_url, read_settings

    settings = read_settings()
    console = await Console.open(find_url(redis_url, settings), timeout=settings.redis.connect_timeout)
    try:
        good = True
        for words in [command] if command else _typed():
            good &= await _one(console, words, as_json)
        return good
    finally:
        await console.close()


async def _one(console: Console, words: list[str], as_json: bool) -> bool:
    from runtime.broker.console import ErrorReply

    reply = await console.send([word.encode("utf-8", "surrogateescape") for word in words])
    _print(reply, as_json)
    while words[0].lower() in _STREAMING and not isinstance(reply, ErrorReply):
        _print(await console.receive(), as_json)
        sys.stdout.flush()
    return not isinstance(reply, ErrorReply)


def _typed() -> Iterator[list[str]]:
    import shlex

    prompt = sys.stdin.isatty()
    while True:
        if prompt:
            sys.stdout.write("> ")
            sys.stdout.flush()
        line = sys.stdin.readline()
        if not line or line.strip() in ("quit", "exit"):
            return
        try:
            words = shlex.split(line)
        except ValueError as error:
            note(f"(error) {error}")
            continue
        if words:
            yield words


def _print(reply: Reply, as_json: bool) -> None:
    if as_json:
        say_json(plain(reply))
    elif sys.stdout.isatty():
        say(drawn(reply))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(raw(reply) + b"\n")


def plain(reply: Reply) -> object:
    """The reply as JSON: text where the bytes are UTF-8, with backslash escapes otherwise."""
    from runtime.broker.console import ErrorReply

    if isinstance(reply, ErrorReply):
        return {"error": reply.text}
    if isinstance(reply, list):
        return [plain(item) for item in reply]
    return reply.decode("utf-8", "backslashreplace") if isinstance(reply, bytes) else reply


def raw(reply: Reply) -> bytes:
    """The reply as redis-cli writes it into a pipe: the bytes themselves, a line each."""
    from runtime.broker.console import ErrorReply

    if isinstance(reply, ErrorReply):
        return reply.text.encode()
    if isinstance(reply, list):
        return b"\n".join(raw(item) for item in reply)
    if reply is None:
        return b""
    return reply if isinstance(reply, bytes) else str(reply).encode()


def drawn(reply: Reply, indent: str = "") -> str:
    """The reply as redis-cli draws it on a terminal: numbered, quoted, with its type."""
    from runtime.broker.console import ErrorReply

    if isinstance(reply, ErrorReply):
        return f"(error) {reply.text}"
    if reply is None:
        return "(nil)"
    if isinstance(reply, int):
        return f"(integer) {reply}"
    if isinstance(reply, list):
        return _numbered(reply, indent)
    return _quoted(reply) if isinstance(reply, bytes) else f"(double) {reply}"


def _numbered(items: list[Reply], indent: str) -> str:
    if not items:
        return "(empty array)"
    width = len(str(len(items)))
    lines = []
    for number, item in enumerate(items, start=1):
        head = f"{number:>{width}}) "
        lines.append(("" if number == 1 else indent) + head + drawn(item, indent + " " * len(head)))
    return "\n".join(lines)


_ESCAPES = {0x5C: "\\\\", 0x22: '\\"', 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x07: "\\a", 0x08: "\\b"}


def _quoted(value: bytes) -> str:
    return '"' + "".join(_ESCAPES.get(b) or (chr(b) if 32 <= b < 127 else f"\\x{b:02x}") for b in value) + '"'
