"""The Dockerfile and the compose file, as far as they can be judged without a container engine."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from runtime.settings import Settings, variable_names
from runtime.worker import deadlines
from tests.support.dockerfile import chain, copies, stages
from tests.support.kubernetes import K8S, ROOT

IMAGE = K8S / "image"
FILE = IMAGE / "Dockerfile"
STAGES = stages(FILE)
TARGETS = ("gateway", "slim", "full")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())


def test_the_linter_finds_nothing():
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, FILE], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_what_is_copied_is_there_and_reaches_the_build():
    kept = {line[1:] for line in (IMAGE / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for stage in STAGES.values() for sources, _ in copies(stage) for source in sources}
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)
    for stage in STAGES.values():
        for rest in stage.of("COPY"):
            if rest.startswith("--from="):
                assert rest.removeprefix("--from=").partition(" ")[0] in STAGES


def test_the_wheel_finds_all_that_it_is_made_of():
    """What the project's own build reads has been copied before it is built."""
    needed = {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "pyproject.toml"}
    needed |= set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    for name in TARGETS:
        copied = {
            source for stage in chain(STAGES, f"build-{name}") for sources, _ in copies(stage) for source in sources
        }
        assert needed <= copied


@pytest.mark.parametrize("name", TARGETS)
def test_extras_are_those_of_the_project_and_versions_those_of_the_lock(name: str):
    installs = [
        rest for stage in chain(STAGES, f"build-{name}") for rest in stage.of("RUN") if "uv pip install" in rest
    ]
    assert len(installs) == 2
    assert "--constraint requirements.lock" in installs[0]
    assert "--no-deps" in installs[1]
    extras = set(re.findall(r"--extra (\w+)", installs[0]))
    assert extras
    assert extras <= set(PROJECT["project"]["optional-dependencies"])
    assert ("langflow" in extras) == (name == "full")
    assert (name != "gateway") == bool(extras & {"worker", "langflow"})


@pytest.mark.parametrize("name", TARGETS)
def test_an_image_runs_as_nobody_in_particular(name: str):
    steps = [step for stage in chain(STAGES, name) for step in stage.steps]
    assert [rest for word, rest in steps if word == "USER"] == ["10001:10001"]
    assert ("ENTRYPOINT", '["headrace"]') in steps
    assert steps[-1] == ("CMD", '["gateway"]' if name == "gateway" else '["worker"]')
    assert not any(word == "RUN" for word, _ in STAGES[name].steps)  # nothing is installed as root after the copy
    variables = dict(pair.split("=", 1) for word, rest in steps if word == "ENV" for pair in rest.split())
    written = {variables[key] for key in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "LANGFLOW_CONFIG_DIR")}
    assert all(path.startswith("/scratch") for path in written)
    assert {key for key in variables if key.startswith("HEADRACE_")} <= set(variable_names())


def test_versions_agree():
    told = dict(rest.split("=", 1) for rest in STAGES["base"].of("ARG"))
    assert told["VERSION"] == PROJECT["project"]["version"]
    texts = [path.read_text() for path in (*K8S.rglob("*.yaml"), ROOT / "compose.yaml", FILE)]
    tags = {tag for text in texts for tag in re.findall(r"headrace-(?:worker|gateway):(\S+)", text)}
    assert tags == {PROJECT["project"]["version"]}
    assert not any(":latest" in text for text in texts)


def test_the_slim_image_has_the_requirements_of_the_examples():
    lines = [line.partition("#")[0].strip() for line in (IMAGE / "flows.txt").read_text().splitlines()]
    pinned = dict(line.split("==") for line in lines if line)
    assert pinned.keys() == {"lfx", "langchain-openai"}  # `headrace flows requirements` says the same of the examples
    assert all(version(name) == number for name, number in pinned.items())


def test_compose_runs_what_the_cluster_runs():
    services = COMPOSE["services"]
    assert services.keys() == {"valkey", "worker", "gateway"}
    for name in ("worker", "gateway"):
        service = services[name]
        assert service["build"]["target"] in TARGETS
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["healthcheck"]["test"]
        assert service["mem_limit"]
        assert {key for key in service["environment"] if key.startswith("HEADRACE_")} <= set(variable_names())
    grace = float(services["worker"]["environment"]["HEADRACE_WORKER__GRACE"])
    assert grace == Settings().worker.grace
    assert services["worker"]["stop_grace_period"] == f"{deadlines.of_kill(grace) + 10:.0f}s"
    assert services["gateway"]["stop_grace_period"] == f"{Settings().gateway.grace + 10:.0f}s"
    assert services["gateway"]["ports"] == ["127.0.0.1:8800:8800"]
    assert "--appendonly" in services["valkey"]["command"]
