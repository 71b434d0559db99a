"""A Dockerfile's stages and instructions, and a stage's steps carried out without a container engine."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Stage:
    """One stage: what it begins from, and its instructions as (word, the rest)."""

    name: str
    parent: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def of(self, word: str) -> list[str]:
        """The rests of all instructions of that word."""
        return [rest for name, rest in self.steps if name == word]


def stages(path: Path) -> dict[str, Stage]:
    """The stages of a file, by name, in order."""
    joined = re.sub(
        r"\\\n", " ", "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    )
    found: dict[str, Stage] = {}
    for line in joined.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            parent, _, name = rest.partition(" AS ")
            found[name] = Stage(name, parent)
        elif word and found:
            next(reversed(found.values())).steps.append((word, " ".join(rest.split())))
    return found


def chain(found: dict[str, Stage], name: str) -> list[Stage]:
    """A stage and those that it grew from, the first one first."""
    stage = found[name]
    return [*(chain(found, stage.parent) if stage.parent in found else []), stage]


def copies(stage: Stage) -> list[tuple[list[str], str]]:
    """What a stage copies from the context: sources and target."""
    parts = [rest.split() for rest in stage.of("COPY") if not rest.startswith("--from=")]
    return [(words[:-1], words[-1]) for words in parts]


def play(found: dict[str, Stage], name: str, *, context: Path, place: Path, uv: Path) -> Path:
    """Carry out a stage's copies and its `uv pip install`s in folders of ``place``; its virtual environment."""
    venv, source = place / "venv", place / "src"
    source.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=120)
    for stage in chain(found, name):
        for word, rest in stage.steps:
            if word == "COPY":
                *sources, target = rest.split()
                for one in sources:
                    into = source / target
                    if (context / one).is_dir():
                        shutil.copytree(context / one, into)
                    else:
                        shutil.copy(context / one, into)
            elif word == "RUN" and "uv pip install" in rest:
                words = shlex.split(rest[rest.index("uv pip install") :].replace("/opt/headrace", str(venv)))
                subprocess.run([uv, *words[1:]], cwd=source, check=True, timeout=900, capture_output=True)
    return venv
