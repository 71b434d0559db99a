"""Kubernetes without a cluster: kustomize as kubectl has it, the API's schemas, KEDA's models, and rules of our own."""

from __future__ import annotations

import fcntl
import io
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
VERSIONS = ("1.35", "1.36", "1.37")
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job")

Object = dict[str, Any]


@cache
def kubectl() -> Path:
    """The binary. It comes as an archive within an archive within a package."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("the kubectl of the tests is one for Linux on x86-64")
    home = Path(sys.prefix) / "kubectl"
    binary = home / "bin" / "kubectl"
    with (home / ".unpacking").open("w") as lock:  # test processes run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            (package,) = home.glob("aws_cdk/*/_jsii/*.tgz")
            with tarfile.open(package) as outer:
                layer = outer.extractfile("package/lib/layer.zip")
                assert layer is not None
                content = zipfile.ZipFile(io.BytesIO(layer.read())).read("kubectl/kubectl")
            binary.parent.mkdir(exist_ok=True)
            fresh = binary.with_suffix(".new")
            fresh.write_bytes(content)
            fresh.chmod(0o755)
            fresh.rename(binary)
    return binary


def build(folder: Path) -> list[Object]:
    """What `kubectl kustomize` makes of a folder."""
    done = subprocess.run(
        [kubectl(), "kustomize", folder], capture_output=True, text=True, timeout=60, check=False, env={"HOME": "/"}
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # deprecated fields are warned of
    return load(done.stdout)


def load(text: str) -> list[Object]:
    """The objects of a YAML text."""
    return [item for item in yaml.safe_load_all(text) if item]


def named(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of that kind and name."""
    (found,) = (o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return found


def schema_faults(item: Object, version: str) -> list[str]:
    """What the API of that version would refuse, unknown keys included."""
    import kubernetes_validate
    from kubernetes_validate import utils

    if not hasattr(utils.schema_contents, "cache_info"):
        utils.schema_contents = cache(utils.schema_contents)  # it reads 2 MB for each object otherwise
    if item["apiVersion"].startswith("keda.sh/"):
        return keda_faults(item)
    try:
        kubernetes_validate.validate(item, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{error.path}: {error.message}"]
    return []


def keda_faults(item: Object) -> list[str]:
    """The same for KEDA's objects, by models made from its resource definitions (of 2.16, without later fields)."""
    from cloudcoil.models.keda import v1alpha1

    known = item
    if behavior := item["spec"].get("fallback", {}).get("behavior"):
        if behavior not in {"static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"}:
            return [f"fallback.behavior: {behavior}"]
        fallback = {key: value for key, value in item["spec"]["fallback"].items() if key != "behavior"}
        known = {**item, "spec": {**item["spec"], "fallback": fallback}}
    try:
        model = getattr(v1alpha1, item["kind"]).model_validate(known)
    except ValueError as error:
        return [str(error)]
    read = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
    # What it does not know it leaves out.
    return [] if read == known else [f"{item['kind']} {item['metadata']['name']}: unknown keys: {known} against {read}"]


def policy_faults(objects: list[Object]) -> list[str]:
    """Which of our own rules the objects break."""
    return [fault for item in objects for fault in _object_faults(item, objects)]


def _object_faults(item: Object, objects: list[Object]) -> Iterator[str]:
    where = f"{item['kind']} {item['metadata']['name']}"
    if "app.kubernetes.io/name" not in item["metadata"].get("labels", {}) and item["kind"] != "Namespace":
        yield f"{where}: no label of the application"
    if item["kind"] == "ServiceAccount" and item.get("automountServiceAccountToken") is not False:
        yield f"{where}: mounts its token"
    if item["kind"] not in WORKLOADS:
        return
    template = item["spec"]["template"]
    for fault in (*_pod_faults(template["spec"]), *_scale_faults(item, objects)):
        yield f"{where}: {fault}"
    labels = template["metadata"]["labels"]
    if not any(o["kind"] == "NetworkPolicy" and _selects(o["spec"]["podSelector"], labels) for o in objects):
        yield f"{where}: no network policy"
    budgets = [o for o in objects if o["kind"] == "PodDisruptionBudget" and _selects(o["spec"]["selector"], labels)]
    if item["kind"] == "Deployment" and len(budgets) != 1:
        yield f"{where}: {len(budgets)} disruption budgets"


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def _scale_faults(item: Object, objects: list[Object]) -> Iterator[str]:
    targets = [o["spec"]["scaleTargetRef"]["name"] for o in objects if o["kind"] == "ScaledObject"]
    if item["metadata"]["name"] in targets and "replicas" in item["spec"]:
        yield "says how many replicas, and so does the autoscaler"
    if targets.count(item["metadata"]["name"]) > 1:
        yield "has two autoscalers"


def _pod_faults(pod: Object) -> Iterator[str]:
    if pod.get("automountServiceAccountToken") is not False:
        yield "mounts the service account's token"
    if pod.get("enableServiceLinks") is not False:
        yield "is told services by variables"
    if "terminationGracePeriodSeconds" not in pod:
        yield "no grace period"
    security = pod.get("securityContext", {})
    if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
        yield "may run as root"
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "no seccomp profile"
    if pod.get("hostNetwork") or pod.get("hostPID") or pod.get("hostIPC"):
        yield "shares the host's namespaces"
    for volume in pod.get("volumes", ()):
        if "hostPath" in volume:
            yield f"volume {volume['name']}: of the host"
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"volume {volume['name']}: without a limit"
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        for fault in _container_faults(container):
            yield f"{container['name']}: {fault}"


def _container_faults(container: Object) -> Iterator[str]:
    name, _, tag = container["image"].rpartition(":")
    if "@sha256:" not in container["image"] and (not name or "/" in tag or tag == "latest"):
        yield f"image {container['image']}: no fixed tag"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe not in container:
            yield f"no {probe}"
    resources = container.get("resources", {})
    if "memory" not in resources.get("limits", {}) or not {"cpu", "memory"} <= resources.get("requests", {}).keys():
        yield "resources are not bounded"
    security = container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False or security.get("privileged"):
        yield "may gain privileges"
    if security.get("readOnlyRootFilesystem") is not True:
        yield "may write to its root"
    if security.get("capabilities") != {"drop": ["ALL"]}:
        yield "keeps capabilities"
    if "preStop" in container.get("lifecycle", {}):
        yield "a preStop hook takes of the grace period"
    for variable in container.get("env", ()):
        if re.search("(KEY|SECRET|PASSWORD|TOKEN|REDIS__URL)$", variable["name"]) and "value" in variable:
            yield f"{variable['name']}: a secret stands in the manifest"
