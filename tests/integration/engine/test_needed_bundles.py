"""Where only installed components may run: what is loaded of the installed extensions, without another verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runtime.engine.accelerators import needed_bundles
from runtime.engine.accelerators.needed_bundles import extensions_of, names_of
from runtime.engine.export import Node

ROOT = Path(__file__).parents[3]
DEADLINE = 240.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What the process says that loads all extensions, and then those that are needed."""
    environ = {
        **os.environ,
        "LANGFLOW_ALLOW_CUSTOM_COMPONENTS": "false",
        "LANGFLOW_CONFIG_DIR": str(tmp_path_factory.mktemp("restricted")),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.integration.engine.restricted_bundles"]
    done = subprocess.run(command, env=environ, capture_output=True, timeout=DEADLINE, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_every_verdict_is_that_of_an_engine_that_has_loaded_all(told: Mapping[str, Any]) -> None:
    assert told["asked"] > 300
    assert told["wrong"] == []
    assert told["differ"] == []


def test_each_component_is_found_by_all_its_names_and_by_its_source(told: Mapping[str, Any]) -> None:
    assert told["missed"] == []
    assert told["by_source"] == []


def test_a_flow_without_components_of_extensions_loads_none(told: Mapping[str, Any]) -> None:
    assert len(told["put_off"]) > 5
    assert told["first"] == "hi"
    assert told["after_hello"] == told["put_off"]


def test_a_component_of_the_users_is_refused_without_loading_any(told: Mapping[str, Any]) -> None:
    assert told["custom"].startswith("FlowUnready") and "LANGFLOW_ALLOW_CUSTOM_COMPONENTS" in told["custom"]
    assert told["after_custom"] == told["put_off"]


def test_a_route_that_switches_it_off_has_all_loaded(told: Mapping[str, Any]) -> None:
    assert told["begun"] == told["put_off"]
    assert told["without"] == "hi"
    assert told["after_without"] == []


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
    assert bool(extensions_of({"Text"}, {"acme": tmp_path})) is found


def test_an_extension_that_cannot_be_read_may_bring_anything(tmp_path: Path) -> None:
    assert extensions_of({"Text"}, {"acme": tmp_path}) == ["acme"]
    (tmp_path / "it.py").write_bytes(b"\xff")
    needed_bundles._text.cache_clear()
    assert extensions_of({"Text"}, {"acme": tmp_path}) == ["acme"]


class TestWhatIsNotPutOff:
    """Bundles of one name hide each other: which of them is seen must not depend on what is loaded when."""

    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """No extensions but those of the test."""
        monkeypatch.setattr(needed_bundles, "_SEEDS", tmp_path / "none")
        monkeypatch.delenv("LANGFLOW_SEED_DIR", raising=False)
        monkeypatch.setenv("LANGFLOW_CONFIG_DIR", str(tmp_path))

    @pytest.fixture
    def roots(self, tmp_path: Path) -> dict[str, Path]:
        """Two extensions with a bundle each."""
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "extension.json").write_text(json.dumps({"bundles": [{"name": name}]}))
        return {name: tmp_path / name for name in ("one", "two")}

    def test_where_all_names_differ_all_are_put_off(self, roots: dict[str, Path], tmp_path: Path) -> None:
        (tmp_path / "mine" / "three").mkdir(parents=True)
        assert needed_bundles._at_once(roots, [tmp_path / "mine"]) == set()

    def test_one_that_a_folder_of_the_users_has_too(self, roots: dict[str, Path], tmp_path: Path) -> None:
        (tmp_path / "mine" / "two").mkdir(parents=True)
        assert needed_bundles._at_once(roots, [tmp_path / "mine"]) == {"two"}

    def test_one_that_two_extensions_have(self, roots: dict[str, Path]) -> None:
        (roots["two"] / "extension.json").write_text(json.dumps({"bundles": [{"name": "two"}, {"name": "one"}]}))
        assert needed_bundles._at_once(roots, []) == {"one", "two"}

    @pytest.mark.parametrize("manifest", ["{", "[]", '{"bundles": [{}]}'])
    def test_one_whose_manifest_does_not_say(self, roots: dict[str, Path], manifest: str) -> None:
        (roots["one"] / "extension.json").write_text(manifest)
        assert needed_bundles._at_once(roots, []) == {"one"}

    def test_any_beside_bundles_that_are_staged_in_a_folder(
        self, roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("LANGFLOW_SEED_DIR", str(tmp_path))
        assert needed_bundles._at_once(roots, []) == {"one", "two"}

    def test_any_beside_an_extension_in_development(self, roots: dict[str, Path], tmp_path: Path) -> None:
        from lfx.extension.dev_registry import register_dev_extension

        register_dev_extension(roots["one"])
        assert needed_bundles._at_once(roots, []) == {"one", "two"}
