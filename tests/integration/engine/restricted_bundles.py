"""Run by test_needed_bundles in a process of its own, where only installed components may run.

Finds out what the engine knows when it has loaded every installed extension, then what is known when only those are
loaded that a flow's components may come from; prints what differs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from runtime.engine.accelerators import needed_bundles
from runtime.engine.accelerators.needed_bundles import extensions_of, load_needed, names_of
from runtime.engine.base import FlowSource, RunRequest
from runtime.engine.export import Node, read_export
from runtime.engine.langflow import LangflowEngine
from tests.support import flows
from tests.support.history import Sessions
from tests.support.offline import Offline

Asked = tuple[str, Mapping[str, Any]]
"""A saved type, and the component that it may mean."""


async def prepared(**accelerators: bool) -> LangflowEngine:
    """An engine, with these switches."""
    engine = LangflowEngine(accelerators=accelerators)
    await engine.prepare(concurrency=1)
    return engine


def forget() -> None:
    """Have the next engine look for components as the first of a process does."""
    from lfx.interface import components

    components.component_cache = type(components.component_cache)()


def known() -> Any:
    """What the engine knows of components."""
    from lfx.interface import components

    return components.component_cache


def put_off() -> list[str]:
    """The extensions that are not loaded."""
    return sorted(needed_bundles._put_off)


def everything() -> Iterator[Asked]:
    """Every component that the engine knows, by each type by which a saved node may name it: the extensions' last."""
    from lfx.utils.component_aliases import get_component_type_aliases

    components = [
        one for some in known().all_types_dict.values() for one in some.items() if "code" in one[1]["template"]
    ]
    for key, component in sorted(components, key=lambda one: one[0].startswith("ext:")):
        for kind in dict.fromkeys([key, *get_component_type_aliases(key, component)]):
            yield kind, component


def verdict(kind: str, component: Mapping[str, Any]) -> list[Any]:
    """All that the engine asks its list about a saved node, and about its source."""
    from lfx.utils.flow_validation import (
        SubstitutableComponentTypes,
        code_hash_matches_any_template,
        get_trusted_code_for_validation,
    )

    now, code = known(), component["template"]["code"]["value"]
    hashes = now.type_to_current_hash
    return [
        sorted(hashes.get(kind, ())),
        now.type_to_code.get(kind),
        kind in SubstitutableComponentTypes(hashes, now.type_to_code),
        code_hash_matches_any_template(code, now.all_known_hashes),
        get_trusted_code_for_validation(code),
        sorted(now.component_identity_index.resolve(kind)),
    ]


def saved(kind: str, component: Mapping[str, Any]) -> FlowSource:
    """A flow with the one component."""
    flow = flows.Flow("Saved")
    flow.put(kind, component, "it")
    return flows.source(flow)


def nodes(source: FlowSource) -> Iterable[Node]:
    """A flow's components."""
    return read_export(source.export, route="saved").nodes


def found_by_type(kind: str, roots: Mapping[str, Path]) -> list[str]:
    """Where a saved node is looked for whose source says nothing."""
    return extensions_of(names_of([Node(id="it", type=kind, name="It", template={}, body={})]), roots)


async def load(*sources: FlowSource, every: bool = False) -> None:
    """What the loading of these flows does first."""
    await asyncio.to_thread(load_needed, sources, every=every)


async def run(engine: LangflowEngine, flow: flows.Flow, **given: Any) -> str:
    """What becomes of a flow."""
    return await run_loaded(engine, dataclasses.replace(flows.source(flow), **given))


async def run_loaded(
    engine: LangflowEngine, source: FlowSource, between: Mapping[str, FlowSource] | None = None
) -> str:
    """The same; ``between`` its load and its run, these are the registry's flows."""
    try:
        loaded = await engine.load(source)
        if between is not None:
            engine.set_siblings(between)
        request = RunRequest("e1", {"input_value": "hi"}, session_id="s")
        return (await engine.run(loaded, request, Sessions(), lambda *_: None)).result.text
    except Exception as error:  # the test compares what was said
        return f"{type(error).__name__}: {error}"


async def compared(engine: LangflowEngine, asked: list[Asked], expected: list[list[Any]]) -> dict[str, Any]:
    """Each verdict as soon as what it needs is loaded, those first that need nothing."""
    roots, told = dict(needed_bundles._put_off), dict[str, Any](asked=len(asked), put_off=put_off(), wrong=[])
    told["hello"] = await run(engine, flows.hello()), put_off()
    told["custom"] = (
        await run(engine, flows.through("def work(self) -> Message:\n    return Message(text='')")),
        put_off(),
    )
    told["missed"] = [
        kind
        for kind, component in asked
        if (bundle := component.get("bundle"))
        and not any(bundle in needed_bundles._bundles(roots[name]) for name in found_by_type(kind, roots))
    ]
    needs = [len(extensions_of(names_of(nodes(saved(*one))), roots)) for one in asked]
    told["need nothing"] = needs.count(0)
    for _, (one, then) in sorted(
        zip(needs, zip(asked, expected, strict=True), strict=True), key=lambda needing: needing[0]
    ):
        if put_off():
            await load(saved(*one))
        if verdict(*one) != then:
            told["wrong"].append(one[0])
    told["rest"] = put_off()
    return told


async def children(component: Mapping[str, Any]) -> dict[str, str]:
    """A flow that runs another, which has a component of an extension since the first was loaded."""
    engine = await prepared()
    first, later = flows.hello(), flows.hello()
    first.name = later.name = "The child"
    first.flow_id = later.flow_id
    later.put("OpenAIEmbeddings", component, openai_api_key="sk-test")
    parent = flows.source(flows.runs_flow(first, name="Parent"))
    before, after = ({"the-child": flows.source(flow, route="the-child"), "parent": parent} for flow in (first, later))
    engine.set_siblings(before)
    told = {"child": await run_loaded(engine, parent, between=after)}
    await engine.close()
    return told


async def main(home: Path) -> dict[str, Any]:
    """All of it."""
    engine = await prepared(needed_bundles=False)
    asked = list(everything())
    expected = [verdict(*one) for one in asked]
    bundles = sorted(known().all_types_dict)
    embeddings = next(
        c for _, c in asked if c["template"]["code"]["value"].find("class OpenAIEmbeddingsComponent") >= 0
    )
    await engine.close()

    forget()
    engine = await prepared()
    told = await compared(engine, asked, expected)
    await engine.close()

    forget()
    engine = await prepared()
    (home / "late" / "late").mkdir(parents=True)
    manifest = {"id": "lfx-late", "version": "0.1.0", "name": "Late", "bundles": [{"name": "late", "path": "late"}]}
    (home / "late" / "extension.json").write_text(json.dumps({"lfx": {"compat": ["1"]}, **manifest}))
    (home / "late" / "late" / "it.py").write_text(flows.component("def work(self) -> Message: ...", name="Late"))
    from lfx.extension.dev_registry import register_dev_extension, unregister_dev_extension

    register_dev_extension(home / "late")
    with mock.patch("lfx.interface.components.import_extension_components", side_effect=OSError("disk")):
        await load(saved("OpenAIEmbeddings", embeddings))
    told["failed"] = put_off()
    await load(saved("OpenAIEmbeddings", embeddings))
    told["retried"] = sorted(set(told["failed"]) - set(put_off()))
    told["late"] = sorted(set(known().all_types_dict) - set(bundles))
    told["without"] = await run(engine, flows.hello(), without=frozenset({"needed_bundles"})), put_off()
    await engine.close()
    unregister_dev_extension(home / "late")

    forget()
    told |= await children(embeddings)
    engine = await prepared(needed_bundles=False)
    told["off"] = sorted(known().all_types_dict) == bundles
    await engine.close()
    return told


if __name__ == "__main__":
    with Offline().guard() as offline:
        found = asyncio.run(main(Path(sys.argv[1])))
        json.dump({**found, "reached": sorted(offline.taken())}, sys.stdout)
