"""The packages that flows need beside the engine: no more and no fewer, with versions."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from runtime.engine.catalog import Provider
from runtime.engine.packages import packages_of
from tests.unit.engine.exports import SOURCE, FakeCatalog, export, field, model, node, source

CATALOG = FakeCatalog()
ENGINE = f"lfx=={version('lfx')}"


def lines(**flows: dict[str, Any]) -> list[str]:
    return [p.line for p in packages_of([source(flow, route=name) for name, flow in flows.items()], CATALOG)]


def test_a_flow_of_plain_components_needs_the_engine_alone() -> None:
    assert lines(a=export(node("ChatInput-1"))) == lines() == [ENGINE]


def test_what_a_components_source_imports_also_later() -> None:
    code = SOURCE + "\n    def build(self):\n        import trustcall\n"
    assert lines(a=export(node("X-1", code="import langchain_community\n" + code))) == [
        ENGINE,
        f"langchain-community=={version('langchain-community')}",
        f"trustcall=={version('trustcall')}",
    ]


def test_what_the_engine_brings_along_is_not_told_again() -> None:
    code = "import langchain_core, pydantic, httpx, pandas\nimport os\nimport lfx.base\n" + SOURCE
    assert lines(a=export(node("X-1", code=code))) == [ENGINE]


def test_a_chosen_provider_brings_its_client() -> None:
    wanted = [ENGINE, f"langchain-openai=={version('langchain-openai')}"]
    assert lines(a=export(node("Agent-1", model=model("OpenAI")))) == wanted
    assert lines(a=export(node("Agent-1", agent_llm=field("OpenAI")))) == wanted
    assert lines(a=export(node("Agent-1", agent_llm=field("Custom"), model=model()))) == [ENGINE]


def test_a_provider_of_an_extension_brings_the_extension_too() -> None:
    catalog = FakeCatalog()
    extension = Provider("Mine", (), module="trustcall", package="trustcall", extension="lfx-openai-compatible")
    object.__setattr__(catalog, "providers", {**catalog.providers, "Mine": extension})
    found = packages_of([source(export(node("Agent-1", model=model("Mine"))))], catalog)
    assert [package.name for package in found] == ["lfx", "lfx-openai-compatible", "trustcall"]


def test_each_package_names_its_routes_once() -> None:
    agent = node("Agent-1", model=model("OpenAI"))
    found = packages_of([source(export(agent, agent), route=r) for r in ("b", "a")], CATALOG)
    assert [(p.name, p.routes) for p in found] == [("lfx", ()), ("langchain-openai", ("a", "b"))]


def test_what_is_not_installed_has_no_version() -> None:
    (_, package) = packages_of([source(export(node("X-1", code="import no_such_thing\n" + SOURCE)))], CATALOG)
    assert (package.name, package.version, package.line) == ("no-such-thing", None, "no-such-thing")
