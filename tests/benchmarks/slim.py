"""What a slim installation takes: for starters with a provider each, and for all of them.

``python -m tests.benchmarks.slim`` makes an environment of ``headrace[worker]`` and what `headrace flows requirements`
prints, and has it load the flows. Needs a registry (or uv's cache); some minutes. Writes a table and results/slim.json.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.starters import export_of, starters

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
CASES = {
    "basic-prompting": ("OpenAI", "gpt-4o-mini", "ChatOpenAI"),
    "simple-agent": ("Anthropic", "claude-sonnet-4-5", "ChatAnthropic"),
    "blog-writer": ("Google Generative AI", "gemini-2.5-flash", "ChatGoogleGenerativeAIFixed"),
    "memory-chatbot": ("Ollama", "llama3.2", "ChatOllama"),
    "market-research": ("OpenAI Compatible", "any", "ChatOpenAI"),
    "saas-pricing": ("IBM WatsonX", "ibm/granite-3-8b-instruct", "ChatWatsonx"),
    "hybrid-search-rag": ("OpenAI", "gpt-4o-mini", "ChatOpenAI"),
}
"""A starter to the provider, model and client that are chosen in it."""

MISSING = {"package", "provider"}
"""Kinds of needs that an installation is to meet; keys, files and models are not its matter."""


def main() -> None:
    """Measure, print, write."""
    rows = [measure(route, {route: chosen(route, *choice)}) for route, choice in CASES.items()]
    rows.append(measure("all", {route: export_of(route) for route in starters()}))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "slim.json").write_text(json.dumps(rows, indent=2))
    for row in rows:
        loaded = f"{row['loaded']}/{row['flows']}"
        print(f"{row['name']:<20} {row['provider']:<22} {loaded:>5} {row['mb']:>5} MB {row['packages']:>4} packages")
        print(f"{'':<20} {' '.join(row['requirements'])}")
        for fault in row["faults"]:
            print(f"{'':<20} {fault}")
    sys.exit(any(row["loaded"] < row["flows"] for row in rows))


def chosen(route: str, provider: str, model: str, client: str) -> dict[str, Any]:
    """A starter with a model chosen in each field for one, as the editor writes it."""
    export = copy.deepcopy(export_of(route))
    choice = {"name": model, "provider": provider, "metadata": {"model_class": client}}
    for node in export["data"]["nodes"]:
        for field in node["data"].get("node", {}).get("template", {}).values():
            if isinstance(field, dict) and field.get("type") == "model":
                field["value"] = [choice]
    return export


def measure(name: str, exports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Install for these flows alone, in an environment of its own, and load them there."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        (home / "flows").mkdir()
        for route, export in exports.items():
            (home / "flows" / f"{route}.json").write_text(json.dumps(export))
        wanted = run(Path(sys.prefix) / "bin" / "headrace", "flows", "requirements", home / "flows")
        (home / "flows.txt").write_text(wanted)
        uv = shutil.which("uv") or Path(sys.prefix) / "bin" / "uv"
        run(uv, "venv", "--quiet", "--python", sys.executable, home / "venv")
        pip = (uv, "pip", "install", "--quiet", "--python", home / "venv")
        run(*pip, "--constraint", ROOT / "requirements.lock", "--requirements", home / "flows.txt", f"{ROOT}[worker]")
        told = run(home / "venv" / "bin" / "headrace", "flows", "check", "--json", home / "flows", allowed=(0, 1))
        reports = [report for report in json.loads(told) if report["route"] in exports]
        faults = [
            f"{r['route']}: {need['message']}" for r in reports for need in r["needs"] if need["kind"] in MISSING
        ] + [f"{r['route']}: {r['error']}" for r in reports if r["error"] and r["verdict"] == "invalid"]
        site = next((home / "venv" / "lib").glob("python*/site-packages"))
        return {
            "name": name,
            "provider": CASES[name][0] if name in CASES else "-",
            "flows": len(exports),
            "loaded": len(exports) - len({fault.partition(":")[0] for fault in faults}),
            "faults": faults,
            "requirements": [line.partition(" ")[0] for line in wanted.splitlines()],
            "packages": len(list(site.glob("*.dist-info"))),
            "mb": sum(f.stat().st_size for f in (home / "venv").rglob("*") if f.is_file() and not f.is_symlink()) >> 20,
            "seconds": round(time.monotonic() - began),
        }


def run(*words: str | Path, allowed: tuple[int, ...] = (0,)) -> str:
    """A command's output. Raises where it fails."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False, timeout=900)
    if done.returncode not in allowed:
        raise SystemExit(f"{' '.join(str(w) for w in words)}: {done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
