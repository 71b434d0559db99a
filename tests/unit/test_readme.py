"""The README's tables and the code say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from runtime.settings import Settings, variable_names
from shared_models.controls import CONTROL
from shared_models.envelope import EventEnvelope
from shared_models.route import NOT_YET_BUILT, Accelerators, PublishRule, RouteSpec, parse_duration

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, str]:
    """A section's first table: what the first column quotes, to the second column."""
    section = README.split(f"\n{heading}\n", 1)[1]
    section = re.split(r"\n#+ ", section, maxsplit=1)[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table, f"no table under {heading}"
    found = {}
    for line in table[0].splitlines()[2:]:
        name, second = (cell.strip() for cell in line.strip("|").split("|")[:2])
        assert name.strip("`") not in found, f"{name} stands twice under {heading}"
        found[name.strip("`")] = second
    return found


ACCELERATORS = "HEADRACE_ENGINE__ACCELERATORS__"


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every key of a spec with its default; lists of rules as ``publish[].to``."""
    for name, field in model.model_fields.items():
        if name == "publish":
            yield from leaves(PublishRule, "publish[].")
        elif field.annotation is Accelerators:
            yield f"{prefix}{name}", ...
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, f"{prefix}{name}.")
        else:
            default = ... if field.is_required() else field.get_default(call_default_factory=True)
            yield f"{prefix}{name}", default


def same(cell: str, default: object) -> bool:
    """Whether a table's default is the code's. Words stand where the code has none."""
    text = cell.strip("`")
    if default in (..., None, (), "") or default == {}:
        return not re.fullmatch(r"`\d.*`", cell)
    if isinstance(default, bool):
        return text == str(default).lower()
    if isinstance(default, int | float):
        return (parse_duration(text) if text[-1].isalpha() else float(text)) == default
    return text == str(getattr(default, "value", default))


def test_every_setting_is_in_the_readme():
    table = rows("## Configuration")
    assert table.pop(f"{ACCELERATORS}NAME") == "`true`"
    assert sorted(table) == sorted(name for name in variable_names() if not name.startswith(ACCELERATORS))
    for name, cell in table.items():
        value: object = Settings.model_construct()
        for part in name.removeprefix("HEADRACE_").lower().split("__"):
            value = getattr(value, part)
        assert same(cell, value), f"{name} is {value!r}, the README says {cell}"


def test_every_accelerator_is_in_the_readme():
    assert list(rows("### Accelerators")) == list(Accelerators.model_fields)


def test_every_key_of_a_route_spec_is_in_the_readme():
    table = rows("## Route spec")
    code = dict(leaves(RouteSpec))
    assert sorted(table) == sorted(code)
    for name, cell in table.items():
        assert same(cell, code[name]), f"{name} is {code[name]!r}, the README says {cell}"
    reserved = README.split("## Route spec")[1].split("\n## ")[0]
    assert all(f"`{name}`" in reserved for name in NOT_YET_BUILT)


def test_every_field_of_an_event_is_in_the_readme():
    table = rows("## Events")
    assert set(table) == (CONTROL | {"payload"}) - {"run_id"}
    assert set(EventEnvelope.model_fields) - {"attributes"} <= set(table)
    for name in ("step_index", "attempt"):
        assert same(table[name], EventEnvelope.model_fields[name].default)


def commands() -> set[str]:
    """What the command line has, as ``dlq list``."""
    import click

    typer = pytest.importorskip("typer")
    from runtime.cli.main import app

    def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
        if inner := getattr(command, "commands", None):
            for name, each in inner.items():
                yield from walk(each, (*path, name))
        else:
            yield " ".join(path)

    return set(walk(typer.main.get_command(app), ()))


def test_every_command_is_in_the_readme():
    assert {name.removeprefix("headrace ") for name in rows("## Commands")} == commands()


def test_every_command_that_the_readme_tells_to_type_exists():
    known = commands()
    typed = re.findall(r"(?:^|[|`] ?)headrace ([a-z][a-z0-9]*(?: [a-z]+)?)", README, re.MULTILINE)
    assert len(typed) > 15
    for words in typed:
        first = words.split()[0]
        assert words in known or first in known, f"there is no `headrace {words}`"


def test_links_lead_somewhere():
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / path).exists(), f"the README links to {path}"


def test_every_module_is_on_the_map():
    text = (ROOT / "runtime" / "README.md").read_text(encoding="utf-8")
    modules = text.split("## Modules")[1].split("## Words")[0]
    parts = re.split(r"^`(shared_models|runtime(?:/\w+)*)/`", modules, flags=re.MULTILINE)[1:]
    told = {
        f"{folder}/{name}"
        for folder, table in zip(parts[::2], parts[1::2], strict=True)
        for row in re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE)
        for name in re.findall(r"`([\w/]+)`", row)
    }
    there = {
        str(path.relative_to(ROOT).with_suffix(""))
        for package in ("shared_models", "runtime")
        for path in (ROOT / package).rglob("*.py")
        if not path.name.startswith("__")
    }
    assert told >= there, f"runtime/README.md lacks {sorted(there - told)}"
    assert told <= there, f"runtime/README.md tells of {sorted(told - there)}"
