"""The shape of the code: who may import whom, what a module does when it is imported, how long a function may be."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("runtime", "shared_models")
BODY_LINES = 60
ALIKE = ("runtime.engine.base", "runtime.engine.echo")
"""The engine's modules that know nothing of Langflow."""


def modules(package: str) -> list[str]:
    found = (path.relative_to(ROOT).with_suffix("") for path in sorted((ROOT / package).rglob("*.py")))
    return [".".join(path.parts).removesuffix(".__init__") for path in found if path.name != "__main__"]


def in_a_fresh_interpreter(names: list[str]) -> dict[str, list[str]]:
    """What importing the modules loads, opens and starts."""
    code = """
import importlib, json, sys, threading
opened = []
sys.addaudithook(lambda event, args: opened.append(event) if event in WATCHED else None)
for name in NAMES:
    importlib.import_module(name)
print(json.dumps({"loaded": sorted(sys.modules), "opened": opened, "threads": [t.name for t in threading.enumerate()]}))
"""
    watched = {"socket.__new__", "socket.connect", "socket.bind", "subprocess.Popen", "os.fork", "os.posix_spawn"}
    done = subprocess.run(
        [sys.executable, "-c", f"WATCHED = {watched!r}\nNAMES = {names!r}\n{code}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, list[str]] = json.loads(done.stdout)
    return seen


def top_level(names: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def test_the_contract_stands_alone() -> None:
    seen = in_a_fresh_interpreter(modules("shared_models"))
    own = {name for name in top_level(seen["loaded"]) if (ROOT / name).is_dir()}
    assert own == {"shared_models"}
    # Debian's Python loads a sitecustomize of its own into every process.
    third_party = top_level(seen["loaded"]) - sys.stdlib_module_names - own - {"sitecustomize", "usercustomize"}
    assert {name for name in third_party if not name.startswith("_")} <= {
        "annotated_types",
        "pydantic",
        "pydantic_core",
        "typing_extensions",
        "typing_inspection",
    }


def test_nothing_happens_at_import() -> None:
    names = [name for package in PACKAGES for name in modules(package)]
    seen = in_a_fresh_interpreter([name for name in names if not name.startswith("runtime.engine.") or name in ALIKE])
    assert seen["opened"] == []
    assert seen["threads"] == ["MainThread"]
    # Langflow takes seconds to load, and only the engine's own modules may ask for it.
    assert not {"lfx", "langflow"} & top_level(seen["loaded"])


def test_imports_point_down() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the last."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_functions_are_short() -> None:
    too_long = {where: lines for where, function in functions() if (lines := body_lines(function)) > BODY_LINES}
    assert too_long == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is(package: str) -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / package).rglob("*.py"))
        if ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert silent == []
