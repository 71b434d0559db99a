"""Every overlay and component builds, and what it builds is what Kubernetes, KEDA and our own rules take."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.cli import manifests
from runtime.settings import Settings, variable_names
from runtime.worker import deadlines
from shared_models.route import ScaleSpec
from tests.support.command import in_process
from tests.support.harness import ECHO_FLOW, write_flow
from tests.support.kubernetes import (
    K8S,
    ROOT,
    VERSIONS,
    Object,
    build,
    load,
    named,
    policy_faults,
    schema_faults,
)

OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (K8S / "components").iterdir())


def faults(objects: list[Object]) -> list[str]:
    by_schema = {version: [f for o in objects for f in schema_faults(o, version)] for version in VERSIONS}
    return [f"{version}: {fault}" for version, found in by_schema.items() for fault in found] + policy_faults(objects)


@pytest.fixture(scope="module")
def built() -> dict[str, list[Object]]:
    return {name: build(K8S / "overlays" / name) for name in OVERLAYS}


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_is_valid(built: dict[str, list[Object]], name: str):
    assert faults(built[name]) == []
    namespaces = {o["metadata"].get("namespace") for o in built[name] if o["kind"] != "Namespace"}
    (own,) = (o["metadata"]["name"] for o in built[name] if o["kind"] == "Namespace")
    assert namespaces == {own}


@pytest.mark.parametrize("name", [*COMPONENTS, "none"])
def test_a_component_is_valid_on_the_base_alone(tmp_path: Path, name: str):
    shutil.copytree(K8S, tmp_path / "k8s")
    one: dict[str, Any] = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    one["resources"] = ["../../base"]
    if name != "none":
        one["components"] = [f"../../components/{name}"]
    folder = tmp_path / "k8s" / "overlays" / "one"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(one))
    assert faults(build(folder)) == []


def test_every_overlay_is_of_parts_that_are_there(built: dict[str, list[Object]]):
    used = {
        Path(part).name
        for name in OVERLAYS
        for part in yaml.safe_load((K8S / "overlays" / name / "kustomization.yaml").read_text()).get("components", ())
    }
    assert used == set(COMPONENTS)


def test_fifty_routes_make_fifty_valid_workloads(tmp_path: Path):
    names = [f"route-{n}" for n in range(46)]
    names += ["über straße", "注文", "a" * 80, "x--y_z"]
    for place, name in enumerate(names):
        write_flow(tmp_path / "flows", name, ECHO_FLOW, {"scale": {"max": place + 1, "target": 3}})
    done = in_process(
        "k8s", "render", "--flows", str(tmp_path / "flows"), "-n", "jobs", "--redis-address", "redis:6379"
    )
    assert done.code == 0, done.err
    shutil.copytree(K8S, tmp_path / "k8s")
    folder = tmp_path / "k8s" / "overlays" / "prod-per-route"
    (folder / "routes.yaml").write_text(done.out, encoding="utf-8")
    text = (folder / "kustomization.yaml").read_text().replace("namespace: headrace\n", "namespace: jobs\n")
    (folder / "kustomization.yaml").write_text(text)
    objects = build(folder)
    assert faults(objects) == []
    workers = [o for o in objects if o["kind"] == "Deployment" and o["metadata"]["name"] != "headrace-gateway"]
    scaled = [o for o in objects if o["kind"] == "ScaledObject"]
    assert len(workers) == len(scaled) == len({o["metadata"]["name"] for o in workers}) == 50
    assert all(len("keda-hpa-" + o["metadata"]["name"]) < 63 for o in workers)
    only = [o["spec"]["template"]["spec"]["containers"][0]["args"] for o in workers]
    assert all(args[:2] == ["worker", "--only"] for args in only)
    assert len({args[2] for args in only}) == 50
    assert sorted(o["spec"]["maxReplicaCount"] for o in scaled) == list(range(1, 51))
    for item in scaled:
        route = named(objects, "Deployment", item["metadata"]["name"])["metadata"]["annotations"]["headrace/route"]
        assert item["spec"]["scaleTargetRef"]["name"] == item["metadata"]["name"]
        assert item["spec"]["triggers"][1]["metadata"]["stream"] == f"flows:{route}"


def test_a_broken_flow_is_not_left_out(tmp_path: Path):
    write_flow(tmp_path, "good")
    (tmp_path / "bad.json").write_text("{")
    done = in_process("k8s", "render", "--flows", str(tmp_path))
    assert (done.code, done.out) == (1, "")
    assert "bad.json" in done.err


def test_the_routes_of_the_overlay_are_those_of_the_examples():
    done = in_process("k8s", "render", "--flows", str(ROOT / "flows"))
    assert done.out == (K8S / "overlays" / "prod-per-route" / "routes.yaml").read_text()


def test_the_base_is_what_is_rendered_for_all_routes(built: dict[str, list[Object]]):
    text = (K8S / "base" / "worker.yaml").read_text()
    work = manifests.Workload(
        named(load(text), "Deployment", "headrace-worker")["spec"]["template"]["spec"]["containers"][0]["image"]
    )
    assert load(text) == [manifests.deployment(work), manifests.disruption_budget(work)]
    scale = ScaleSpec(min=1)
    trigger = manifests.load_trigger(scale, namespace="headrace", route=None)
    scaled = load((K8S / "components" / "keda" / "scaledobject.yaml").read_text())
    assert scaled[1] == manifests.scaled_object(work, scale, [trigger])
    authentication = manifests.gateway_authentication("headrace")
    del authentication["metadata"]["namespace"]
    assert scaled[0] == authentication


def test_a_pod_is_given_the_time_of_a_drain_and_ten_seconds(built: dict[str, list[Object]]):
    for name in OVERLAYS:
        for item in (o for o in built[name] if o["kind"] == "Deployment"):
            pod = item["spec"]["template"]["spec"]
            env = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}
            if "HEADRACE_WORKER__GRACE" in env:
                grace = float(env["HEADRACE_WORKER__GRACE"])
                assert grace == Settings().worker.grace == manifests.GRACE
                assert pod["terminationGracePeriodSeconds"] == deadlines.of_kill(grace) + 10
                assert pod["terminationGracePeriodSeconds"] >= deadlines.of_supervisor(grace)
                start = pod["containers"][0]["startupProbe"]
                assert start["periodSeconds"] * start["failureThreshold"] >= Settings().worker.start_timeout
            else:
                assert float(env["HEADRACE_GATEWAY__GRACE"]) == Settings().gateway.grace
                assert pod["terminationGracePeriodSeconds"] == Settings().gateway.grace + 10


def test_the_settings_in_manifests_exist(built: dict[str, list[Object]]):
    known = set(variable_names())
    for objects in built.values():
        for item in (o for o in objects if o["kind"] == "Deployment"):
            for container in item["spec"]["template"]["spec"]["containers"]:
                assert {e["name"] for e in container["env"] if e["name"].startswith("HEADRACE_")} <= known


def test_probes_ask_where_the_settings_say(built: dict[str, list[Object]]):
    for item in (o for o in built["prod"] if o["kind"] == "Deployment"):
        container = item["spec"]["template"]["spec"]["containers"][0]
        env = {e["name"]: e.get("value") for e in container["env"]}
        port = env.get("HEADRACE_WORKER__PROBE_PORT") or env["HEADRACE_GATEWAY__PORT"]
        assert container["ports"][0]["containerPort"] == int(port)
        told = {container[p]["httpGet"]["port"] for p in ("startupProbe", "readinessProbe", "livenessProbe")}
        assert told == {container["ports"][0]["name"]}


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name != "dev"])
def test_the_autoscaler_asks_the_gateway_of_its_namespace(built: dict[str, list[Object]], name: str):
    services = {
        f"{o['metadata']['name']}.{o['metadata']['namespace']}.svc" for o in built[name] if o["kind"] == "Service"
    }
    asked = [t for o in built[name] if o["kind"] == "ScaledObject" for t in o["spec"]["triggers"]]
    assert asked
    for trigger in asked:
        assert trigger["metadata"]["url"].removeprefix("http://").partition(":")[0] in services
        assert named(built[name], "TriggerAuthentication", trigger["authenticationRef"]["name"])


def _container(objects: list[Object]) -> Object:
    return named(objects, "Deployment", "headrace-worker")["spec"]["template"]["spec"]["containers"][0]


BROKEN: dict[str, Callable[[list[Object]], object]] = {
    "no fixed tag": lambda o: _container(o).update(image="headrace-worker:latest"),
    "no livenessProbe": lambda o: _container(o).pop("livenessProbe"),
    "resources are not bounded": lambda o: _container(o)["resources"].pop("limits"),
    "may write to its root": lambda o: _container(o)["securityContext"].pop("readOnlyRootFilesystem"),
    "a secret stands": lambda o: _container(o)["env"].append(
        {"name": "HEADRACE_REDIS__URL", "value": "redis://:secret@x"}
    ),
    "so does the autoscaler": lambda o: named(o, "Deployment", "headrace-worker")["spec"].update(replicas=2),
    "may run as root": lambda o: named(o, "Deployment", "headrace-worker")["spec"]["template"]["spec"].pop(
        "securityContext"
    ),
    "0 disruption budgets": lambda o: o.remove(named(o, "PodDisruptionBudget", "headrace-worker")),
    "no network policy": lambda o: o.remove(named(o, "NetworkPolicy", "headrace")),
    "mounts its token": lambda o: named(o, "ServiceAccount", "headrace").pop("automountServiceAccountToken"),
    "unknown keys": lambda o: named(o, "ScaledObject", "headrace-worker")["spec"].update(minReplicas=1),
    "1.37": lambda o: _container(o).update(livenesProbe={}),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_the_rules_see_a_fault(built: dict[str, list[Object]], fault: str):
    objects = copy.deepcopy(built["prod"])
    BROKEN[fault](objects)
    assert any(fault in found for found in faults(objects)), faults(objects)
