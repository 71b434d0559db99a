"""Where only installed components may run: what is loaded of the installed extensions, without another verdict."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runtime.engine.accelerators import needed_bundles
from runtime.engine.accelerators.needed_bundles import KNOWN, extensions_of, names_of, text_of, to_put_off
from runtime.engine.catalog import extension_roots
from runtime.engine.export import Node

ROOT = Path(__file__).parents[3]
DEADLINE = 240.0

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("engine")]  # its import keeps the logging as it is


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What the process says that loads all extensions, and then those that are needed."""
    home = tmp_path_factory.mktemp("restricted")
    environ = {
        **os.environ,
        "LANGFLOW_ALLOW_CUSTOM_COMPONENTS": "false",
        "LANGFLOW_CONFIG_DIR": str(home),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.integration.engine.restricted_bundles", str(home)]
    done = subprocess.run(command, env=environ, capture_output=True, timeout=DEADLINE, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_every_verdict_is_that_of_an_engine_that_has_loaded_all(told: Mapping[str, Any]) -> None:
    assert told["asked"] > 500
    assert told["need nothing"] > 200
    assert told["wrong"] == []


def test_each_component_of_an_extension_is_found_by_its_type_alone(told: Mapping[str, Any]) -> None:
    assert told["missed"] == []


def test_a_flow_without_components_of_extensions_loads_none(told: Mapping[str, Any]) -> None:
    assert len(told["put_off"]) > 5
    assert told["hello"] == ["hi", told["put_off"]]


def test_a_component_of_the_users_is_refused_without_loading_any(told: Mapping[str, Any]) -> None:
    said, rest = told["custom"]
    assert said.startswith("FlowUnready") and "LANGFLOW_ALLOW_CUSTOM_COMPONENTS" in said
    assert rest == told["put_off"]


def test_a_route_that_switches_it_off_has_all_loaded(told: Mapping[str, Any]) -> None:
    assert told["without"] == ["hi", []]


def test_an_engine_that_has_it_switched_off_loads_all_though_one_before_it_did_not(told: Mapping[str, Any]) -> None:
    assert told["off"]


def test_one_that_fails_to_load_is_tried_again_with_the_next_flow(told: Mapping[str, Any]) -> None:
    assert told["failed"] == told["put_off"]
    assert "lfx-openai" in told["retried"]


def test_what_is_staged_later_is_not_admitted_before_the_next_start(told: Mapping[str, Any]) -> None:
    assert told["late"] == []


def test_a_flow_that_a_run_calls_has_its_extensions_loaded(told: Mapping[str, Any]) -> None:
    assert told["child"] == "hi"


def test_nothing_is_reached_though_all_extensions_are_loaded(told: Mapping[str, Any]) -> None:
    assert told["reached"] == []


def saved(kind: str, code: str = "") -> Node:
    """A component of a saved flow."""
    return Node("id", kind, "Name", {"code": {"value": code}}, {})


@pytest.mark.parametrize(
    ("node", "name"),
    [
        (saved("Text"), "Text"),
        (saved("ext:acme:TextComponent@official"), "TextComponent"),
        (saved("acme.components.TextComponent"), "TextComponent"),
        (saved("Renamed", "import x\nclass TextComponent(Component):\n    pass"), "TextComponent"),
        (saved("TavilyAISearch"), "TavilySearchComponent"),
    ],
)
def test_what_a_component_may_be_known_by(node: Node, name: str) -> None:
    assert name in names_of([node])


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class Text(Component): ...", True),
        ("class TextComponent(Component): ...", True),
        ("class Other(Component):\n    name = 'Text'", True),
        ('class Other(Component):\n    display_name: str = "Text"', True),
        ("class Texts(Component):\n    name = 'Texts'\n    # Text", False),
    ],
)
def test_where_a_component_may_come_from(tmp_path: Path, source: str, found: bool) -> None:
    (tmp_path / "components").mkdir()
    (tmp_path / "components" / "it.py").write_text(source)
    (tmp_path / "extension.json").write_text("{}")
    assert bool(extensions_of({"Text"}, {"acme": tmp_path})) is found


class TestWhatIsNotPutOff:
    """What else is installed or staged may hide an extension's components: it must not matter what is loaded when."""

    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Nothing is staged or in development."""
        monkeypatch.setattr("lfx.extension.discovery.DEFAULT_SEED_DIR", tmp_path / "none")
        monkeypatch.delenv("LANGFLOW_SEED_DIR", raising=False)
        monkeypatch.setenv("LANGFLOW_CONFIG_DIR", str(tmp_path))

    @pytest.fixture
    def roots(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
        """Two extensions with a bundle each, which are known."""
        roots = {name: tmp_path / name for name in ("one", "two")}
        for name, root in roots.items():
            root.mkdir()
            (root / "extension.json").write_text(json.dumps({"bundles": [{"name": name}]}))
        known = {name: frozenset({text_of(root)}) for name, root in roots.items()}
        monkeypatch.setattr(needed_bundles, "KNOWN", known)
        return roots

    def test_where_nothing_is_in_the_way_all_are_put_off(self, roots: dict[str, Path], tmp_path: Path) -> None:
        (tmp_path / "mine" / "three").mkdir(parents=True)
        assert to_put_off(roots, [tmp_path / "mine"]) == roots

    def test_one_whose_bundle_the_user_has_too(self, roots: dict[str, Path], tmp_path: Path) -> None:
        (tmp_path / "mine" / "two").mkdir(parents=True)
        assert to_put_off(roots, [tmp_path / "mine"]) == {"one": roots["one"]}

    def test_any_beside_one_that_is_not_known(self, roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(needed_bundles, "KNOWN", {"one": frozenset({text_of(roots["one"])})})
        assert to_put_off(roots, []) == {}

    @pytest.mark.parametrize(
        ("name", "text"), [("extension.json", b"{}"), ("it.py", b"name = 'It'"), ("it.py", b"\xff")]
    )
    def test_any_beside_one_that_has_another_text(self, roots: dict[str, Path], name: str, text: bytes) -> None:
        (roots["one"] / name).write_bytes(text)
        needed_bundles._sources.cache_clear()
        assert to_put_off(roots, []) == {}

    def test_any_where_a_folder_of_the_users_cannot_be_read(self, roots: dict[str, Path], tmp_path: Path) -> None:
        assert to_put_off(roots, [tmp_path / "gone"]) == {}

    def test_any_beside_bundles_that_are_staged_in_a_folder(
        self, roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("LANGFLOW_SEED_DIR", str(tmp_path))
        assert to_put_off(roots, []) == {}

    def test_any_beside_a_package_of_bundles(self, roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(needed_bundles.metadata, "entry_points", lambda group: [group])
        assert to_put_off(roots, []) == {}

    def test_any_beside_an_extension_in_development(self, roots: dict[str, Path]) -> None:
        from lfx.extension.dev_registry import register_dev_extension

        register_dev_extension(roots["one"])
        assert to_put_off(roots, []) == {}

    def test_any_where_a_policy_blocks_components(
        self, roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from lfx.services.deps import get_catalog_policy_service

        policy = get_catalog_policy_service()
        blocks = dataclasses.replace(policy.snapshot, blocked_component_keys=frozenset({"Agent"}))
        monkeypatch.setattr(type(policy), "snapshot", property(lambda _: blocks))
        assert to_put_off(roots, []) == {}


def test_the_installed_extensions_are_known() -> None:
    """A lock that brings another one needs it read, and its text put beside the others."""
    unknown = {name: text_of(root) for name, root in extension_roots().items() if text_of(root) not in KNOWN[name]}
    assert unknown == {}
