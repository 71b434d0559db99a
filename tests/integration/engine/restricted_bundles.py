"""Run by test_needed_bundles in a process of its own, where only installed components may run.

Finds out what the engine knows when it has loaded every installed extension, then what is known when only those are
loaded that a flow's components may come from; prints both verdicts on everything that may be asked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from runtime.engine.accelerators import needed_bundles
from runtime.engine.accelerators.needed_bundles import extensions_of, load_needed, names_of
from runtime.engine.base import RunRequest
from runtime.engine.export import Node
from runtime.engine.langflow import LangflowEngine
from tests.support import flows
from tests.support.history import Sessions
from tests.support.offline import Offline


async def prepared(**accelerators: bool) -> LangflowEngine:
    """An engine whose list of components is made anew."""
    from lfx.interface import components

    components.component_cache = type(components.component_cache)()
    engine = LangflowEngine(accelerators=accelerators)
    await engine.prepare(concurrency=1)
    return engine


def known() -> Any:
    """What the engine knows of components."""
    from lfx.interface import components

    return components.component_cache


def aliases(key: str, component: Mapping[str, Any]) -> Iterable[str]:
    """The types by which saved nodes may name a component."""
    from lfx.utils.component_aliases import get_component_type_aliases

    return get_component_type_aliases(key, component)


def node(kind: str, component: Mapping[str, Any]) -> Node:
    """A component as a saved flow has it."""
    return Node(id="it", type=kind, name="It", template=component["template"], body=component)


def verdicts(kind: str, component: Mapping[str, Any]) -> list[Any]:
    """All that the engine asks its list about a saved node, and about its source."""
    from lfx.utils.flow_validation import (
        SubstitutableComponentTypes,
        code_hash_matches_any_template,
        get_trusted_code_for_validation,
    )

    now, code = known(), component["template"]["code"]["value"]
    hashes = now.type_to_current_hash
    replaced = kind in SubstitutableComponentTypes(hashes, now.type_to_code)
    return [
        sorted(hashes.get(kind, ())),
        now.type_to_code.get(kind),
        replaced,
        code_hash_matches_any_template(code, now.all_known_hashes),
        get_trusted_code_for_validation(code),
        sorted(now.component_identity_index.resolve(kind)),
    ]


async def run(engine: LangflowEngine, flow: flows.Flow, **given: Any) -> str:
    """What becomes of a flow."""
    try:
        source = dataclasses.replace(flows.source(flow), **given)
        loaded = await engine.load(source)
        request = RunRequest("e1", {"input_value": "hi"}, session_id="s")
        return (await engine.run(loaded, request, Sessions(), lambda *_: None)).result.text
    except Exception as error:  # the test compares what was said
        return f"{type(error).__name__}: {error}"


async def main() -> dict[str, Any]:
    """Both, one after the other."""
    engine = await prepared(needed_bundles=False)
    whole = known()
    extensions = {
        (bundle, key): component
        for bundle, components in whole.all_types_dict.items()
        for key, component in components.items()
        if key.startswith("ext:")
    }
    built_in = {
        key: component
        for components in whole.all_types_dict.values()
        for key, component in components.items()
        if not key.startswith("ext:") and "code" in component["template"]
    }
    asked = [
        (kind, component) for (_, key), component in extensions.items() for kind in (key, *aliases(key, component))
    ]
    asked += built_in.items()
    expected = [verdicts(*one) for one in asked]
    await engine.close()

    engine = await prepared()
    roots = dict(needed_bundles._put_off)
    of_bundle = {bundle: name for name, root in roots.items() for bundle in needed_bundles._bundles(root) or ()}
    missed = [
        (kind, bundle)
        for (bundle, key), component in extensions.items()
        for kind in (key, *aliases(key, component))
        if of_bundle[bundle] not in extensions_of(names_of([node(kind, {"template": {}})]), roots)
    ]
    by_source = [
        (key, bundle)
        for (bundle, key), component in extensions.items()
        if of_bundle[bundle] not in extensions_of(names_of([node("Renamed", component)]), roots)
    ]
    first = await run(engine, flows.hello())
    after_hello = sorted(needed_bundles._put_off)
    custom = await run(engine, flows.through("def work(self) -> Message:\n    return Message(text=self.text)"))
    after_custom = sorted(needed_bundles._put_off)
    differ = []
    for (bundle, key), component in extensions.items():
        await asyncio.to_thread(load_needed, [node(key, component)])
        differ += [(key, bundle)] if known().all_types_dict[bundle][key]["metadata"] != component["metadata"] else []
    wrong = [
        kind for (kind, component), verdict in zip(asked, expected, strict=True) if verdicts(kind, component) != verdict
    ]
    await asyncio.to_thread(load_needed, [], every=True)
    await engine.close()

    engine = await prepared()
    begun = sorted(needed_bundles._put_off)
    without = await run(engine, flows.hello(), without=frozenset({"needed_bundles"}))
    answer = {
        "asked": len(asked), "wrong": wrong, "differ": differ, "missed": missed, "by_source": by_source,
        "put_off": sorted(roots), "first": first, "after_hello": after_hello, "custom": custom,
        "after_custom": after_custom, "begun": begun, "without": without,
        "after_without": sorted(needed_bundles._put_off),
    }  # fmt: skip
    await engine.close()
    return answer


if __name__ == "__main__":
    with Offline().guard() as offline:
        found = asyncio.run(main())
        json.dump({**found, "reached": sorted(offline.taken())}, sys.stdout)
