"""Kubernetes objects as plain dictionaries: a worker Deployment and what scales it. Pure.

``k8s/base/worker.yaml`` and ``k8s/components/keda/scaledobject.yaml`` are the same objects for all routes together; a
test holds them against these.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from dataclasses import dataclass
from typing import Any

from shared_models.names import slug
from shared_models.route import ScaleSpec

WORKER = "headrace-worker"

GRACE = 60
"""HEADRACE_WORKER__GRACE of the worker, in seconds."""

KILL_AFTER = GRACE + 35
"""When the platform kills it: the longest drain (``worker.deadlines.of_kill``) and 10 s."""

NAME_BYTES = 50
"""The longest name: KEDA and Kubernetes put parts before and after it, to 63 together."""

_APP = {"app.kubernetes.io/name": "headrace"}
_WORKER = {**_APP, "app.kubernetes.io/component": "worker"}
_LABEL = "headrace/workload"


@dataclass(frozen=True, slots=True)
class Workload:
    """A worker Deployment: for one route, or for all where ``route`` is None."""

    image: str
    route: str | None = None
    namespace: str | None = None

    @property
    def name(self) -> str:
        """What its objects are called."""
        return WORKER if self.route is None else f"{WORKER}-{name_of(self.route)}"

    def metadata(self) -> dict[str, Any]:
        """The metadata of each of its objects."""
        told = {"name": self.name, "labels": dict(_WORKER)}
        if self.namespace is not None:
            told["namespace"] = self.namespace
        if self.route is not None:
            told["annotations"] = {"headrace/route": self.route}
        return told


def name_of(route: str) -> str:
    """A route's name as part of an object's name (RFC 1123): with a digest where it had to be changed."""
    most = NAME_BYTES - len(WORKER) - 1
    plain = re.sub("-+", "-", re.sub("[^a-z0-9]+", "-", slug(route))).strip("-")
    if plain == route and len(plain) <= most:
        return plain
    digest = hashlib.sha256(route.encode()).hexdigest()[:8]
    return f"{plain[: most - 9].strip('-')}-{digest}".strip("-")


def deployment(work: Workload) -> dict[str, Any]:
    """The Deployment. It says no number of replicas: an autoscaler does."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": work.metadata(),
        "spec": {
            "revisionHistoryLimit": 3,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": {**_WORKER, _LABEL: work.name}},
            "template": {"metadata": {"labels": {**_WORKER, _LABEL: work.name}}, "spec": _pod(work)},
        },
    }


def disruption_budget(work: Workload) -> dict[str, Any]:
    """How many of its pods a node's maintenance may end at once."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": work.metadata(),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {_LABEL: work.name}},
        },
    }


def _pod(work: Workload) -> dict[str, Any]:
    return {
        "serviceAccountName": "headrace",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": KILL_AFTER,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {_LABEL: work.name}},
            }
        ],
        "containers": [_container(work)],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "2Gi"}}],
    }


def _container(work: Workload) -> dict[str, Any]:
    variables = {
        "HEADRACE_FLOWS": "/flows",
        "HEADRACE_WORKER__GRACE": str(GRACE),
        "HEADRACE_WORKER__PROBE_HOST": "0.0.0.0",  # noqa: S104  a node's probes come from outside of the pod
        "HEADRACE_WORKER__PROBE_PORT": "8801",
        "HEADRACE_LOG__FORMAT": "json",
    }
    redis = {"secretKeyRef": {"name": "headrace-redis", "key": "url"}}
    live, ready = ({"httpGet": {"path": path, "port": "probes"}} for path in ("/livez", "/readyz"))
    return {
        "name": "worker",
        "image": work.image,
        "args": ["worker"] if work.route is None else ["worker", "--only", work.route],
        "envFrom": [
            {"configMapRef": {"name": "headrace-settings", "optional": True}},
            {"secretRef": {"name": "headrace-environment", "optional": True}},
        ],
        "env": [
            {"name": "HEADRACE_REDIS__URL", "valueFrom": redis},
            *({"name": name, "value": value} for name, value in variables.items()),
        ],
        "ports": [{"name": "probes", "containerPort": 8801}],
        "startupProbe": {**live, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 60},
        "readinessProbe": {**ready, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {**live, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
        "resources": {
            "requests": {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi"},
            "limits": {"memory": "3Gi", "ephemeral-storage": "3Gi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }


def gateway_authentication(namespace: str) -> dict[str, Any]:
    """How the autoscaler shows who it is to the gateway: an API key of the scope ``read``, in the Secret."""
    return _authentication(
        "headrace-gateway", namespace, [{"parameter": "token", "name": "headrace-keda", "key": "token"}]
    )


def redis_authentication(namespace: str) -> dict[str, Any]:
    """How it does so to Redis: name and password, in the Secret of the URL."""
    keys = ("username", "password")
    return _authentication(
        "headrace-redis", namespace, [{"parameter": k, "name": "headrace-redis", "key": k} for k in keys]
    )


def _authentication(name: str, namespace: str, secrets: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "TriggerAuthentication",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(_APP)},
        "spec": {"secretTargetRef": secrets},
    }


def load_trigger(scale: ScaleSpec, *, namespace: str, route: str | None) -> dict[str, Any]:
    """Scale by the gateway's number: waiting, running and delayed, counted, an error where it cannot be told."""
    path = "/v1/load" if route is None else f"/v1/routes/{urllib.parse.quote(route, safe='')}/load"
    return {
        "type": "metrics-api",
        "metricType": "AverageValue",
        "metadata": {
            "url": f"http://headrace-gateway.{namespace}.svc:8800{path}",
            "valueLocation": "load",
            "targetValue": str(scale.target),
            "activationTargetValue": "0",
            "authMode": "bearer",
        },
        "authenticationRef": {"name": "headrace-gateway"},
    }


def length_trigger(scale: ScaleSpec, *, address: str, stream: str) -> dict[str, Any]:
    """Scale by the stream's length, which Redis knows without the gateway.

    An entry stays until it is settled, so the length holds all that waits, runs or is delayed. Unlike a group's lag it
    is never unknown: KEDA takes an unknown lag for nothing to do.
    """
    return {
        "type": "redis-streams",
        "metricType": "AverageValue",
        "metadata": {"address": address, "stream": stream, "streamLength": str(scale.target)},
        "authenticationRef": {"name": "headrace-redis"},
    }


def scaled_object(work: Workload, scale: ScaleSpec, triggers: list[dict[str, Any]]) -> dict[str, Any]:
    """What KEDA does: none where every trigger says 0, else as many as the largest asks for.

    While a trigger cannot be asked nobody is taken away and one is there (KEDA 2.17 and later).
    """
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": work.metadata(),
        "spec": {
            "scaleTargetRef": {"name": work.name},
            "pollingInterval": 5,
            "cooldownPeriod": 300,
            "minReplicaCount": scale.min,
            "maxReplicaCount": scale.max,
            "fallback": {
                "failureThreshold": 3,
                "replicas": max(1, scale.min),
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior()}},
            "triggers": triggers,
        },
    }


def _behavior() -> dict[str, Any]:
    half = {"type": "Percent", "value": 50, "periodSeconds": 60}
    double, four = (
        {"type": "Percent", "value": 100, "periodSeconds": 15},
        {"type": "Pods", "value": 4, "periodSeconds": 15},
    )
    return {
        "scaleDown": {"stabilizationWindowSeconds": 300, "policies": [half]},
        "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [double, four], "selectPolicy": "Max"},
    }
