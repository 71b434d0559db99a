"""A script's header is its contract: what it says of keys, arguments and answers is what the body does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import runtime.broker.lua
from runtime.broker.scripts import Refusal

pytestmark = pytest.mark.unit

FOLDER = Path(runtime.broker.lua.__file__).parent
SCRIPTS = sorted(FOLDER.glob("*.lua"))
NAMES = [path.stem for path in SCRIPTS]

# Refused whole when the server is out of memory (PROTOCOL 3): they take new work in. All others free memory or keep
# workers alive.
NO_FLAG = {"admit", "publish", "begin", "requeue", "resume"}
READ_ONLY = {"count", "glance"}


def parts(name: str) -> tuple[list[str], str]:
    lines = (FOLDER / f"{name}.lua").read_text().splitlines()
    header = [line for line in lines[1:] if line.startswith("--")]
    end = next(i for i, line in enumerate(lines[1:], 1) if not line.startswith("--"))
    return header[: end - 1], "\n".join(lines[end:])


def test_every_script_of_the_protocol_is_there() -> None:
    protocol = (
        "renew publish fetch begin complete stage retry release dead_letter unstarted sweep leave audit cancel requeue "
        "suspend resume"
    )
    assert set(protocol.split()) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_first_line(name: str) -> None:
    first = (FOLDER / f"{name}.lua").read_text().splitlines()[0]
    expected = "#!lua" if name in NO_FLAG else "#!lua flags=no-writes" if name in READ_ONLY else "#!lua flags=allow-oom"
    assert first == expected


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_documented_with_name_and_type(name: str) -> None:
    header, body = parts(name)
    told = [re.match(r"-- KEYS\[(\d+)(\.\.\.)?\] (.*)", line) for line in header]
    numbers = [int(m[1]) for m in told if m]
    assert numbers == list(range(1, len(numbers) + 1))
    for m in filter(None, told):
        if not m[2]:
            assert re.match(r"\w+ +(stream|hash|zset|string|list) +\S", m[3]), m[0]
    used = [int(n) for n in re.findall(r"KEYS\[(\d+)\]", body)]
    open_ended = any(m and m[2] for m in told)
    assert max(used, default=0) == len(numbers) - (1 if open_ended else 0)
    assert ("#KEYS" in body) == open_ended


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_documented(name: str) -> None:
    header, body = parts(name)
    told = [re.match(r"-- ARGV\[(\d+)(\.\.\.)?\] \S", line) for line in header]
    numbers = [int(m[1]) for m in told if m]
    assert numbers == list(range(1, len(numbers) + 1))
    used = {int(n) for n in re.findall(r"ARGV\[(\d+)\]", body)}
    assert max(used, default=0) <= max(numbers, default=0)
    if numbers:
        last = next(m for m in reversed(told) if m)
        assert last[2] or max(numbers) in used or f"a = {max(numbers)}" in body


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_documented(name: str) -> None:
    header, body = parts(name)
    told = {int(n) for line in header for n in re.findall(r"^-- +\{?(-?\d)[,}\s]", line)}
    given = set()
    for answer in re.findall(r"return (?:\w+ and )?\{([^}]*)\}", body):
        given |= {int(n) for n in re.findall(r"(?:^|and |or )(-?\d)(?![\w.])", answer.split(",")[0])}
    for answer in re.findall(r"or \{(\d)", body):
        given.add(int(answer))
    if "fence()" in body:
        given |= {2, -2}
    if name == "renew":
        given |= {int(n) for n in re.findall(r"= (-?\d)$", body, re.M)} | {1, 2}
    if name in ("unstarted", "leave", "count", "audit", "thin", "glance", "patrol"):
        return  # their answers are amounts
    assert told == given, (told, given)
    assert {n for n in given if n < 0} <= set(Refusal)


@pytest.mark.parametrize("function", ["before", "drop", "park", "fence", "remember", "bound", "fold"])
def test_a_function_of_one_name_is_one_function(function: str) -> None:
    """There is no include step; a repeated function must not drift."""
    spelt: dict[str, list[str]] = {}
    for path in SCRIPTS:
        found = re.search(rf"^local function {function}\(.*?^end$", path.read_text(), re.S | re.M)
        if found and not (path.stem == "begin" and function == "park"):  # begin knows that the entry is pending
            spelt.setdefault(found[0], []).append(path.stem)
    assert len(spelt) == 1, list(spelt.values())


@pytest.mark.parametrize("name", NAMES)
def test_all_keys_come_in_and_time_comes_from_redis(name: str) -> None:
    _, body = parts(name)
    assert "hr:" not in body
    for command in re.findall(r"redis\.p?call\('(\w+)', *('[^']*')", body):
        assert command[0] in ("XINFO", "XGROUP", "XREADGROUP"), command
    if re.search(r"\bnow\b", body):
        assert "redis.call('TIME')" in body
