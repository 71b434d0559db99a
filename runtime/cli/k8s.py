"""``headrace k8s``: Kubernetes manifests from route specs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.options import Flows, group
from runtime.cli.output import FAILED, note

if TYPE_CHECKING:
    from runtime.registry.snapshot import Route

app = group("Kubernetes manifests.")


@app.callback()
def _root() -> None:
    """Keep ``render`` a command of a group: there is but one."""


@app.command("render")
def render(
    *,
    flows: Flows = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", metavar="NAME", help="Where they go.")] = "headrace",
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="Default: headrace-worker of this version.")
    ] = None,
    redis_address: Annotated[
        str | None,
        typer.Option(
            "--redis-address",
            metavar="HOST:PORT",
            help="Scale by the length of the streams too, for times when the gateway is away. A single server only.",
        ),
    ] = None,
) -> None:
    """Write, for each route of a folder, a Deployment that runs only it, and a ScaledObject by the spec's `scale`.

    The YAML goes to stdout, for `kubectl apply` or as a resource of an overlay (k8s/overlays/prod-per-route).
    """
    import yaml

    from runtime.cli.connection import read_settings
    from runtime.cli.directory import scan_folder

    folder = flows or read_settings().flows
    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder}")
    snapshot = scan_folder(folder)
    if snapshot.problems:
        for problem in snapshot.problems:
            note(f"{problem.path}: {problem.message}")
        note("headrace: nothing is written: a route that is broken would be missing")
        raise typer.Exit(FAILED)
    objects = list(_objects(list(snapshot.routes.values()), namespace, image or _image(), redis_address))
    yaml.safe_dump_all(objects, sys.stdout, sort_keys=False, explicit_start=True, width=120, allow_unicode=True)


def _objects(routes: list[Route], namespace: str, image: str, redis_address: str | None) -> Iterator[dict[str, Any]]:
    from runtime.cli import manifests

    if routes:
        yield manifests.gateway_authentication(namespace)
        if redis_address is not None:
            yield manifests.redis_authentication(namespace)
    for route in sorted(routes, key=lambda route: route.name):
        work = manifests.Workload(image, route.name, namespace)
        scale = route.spec.scale
        triggers = [manifests.load_trigger(scale, namespace=namespace, route=route.name)]
        if redis_address is not None:
            triggers.append(manifests.length_trigger(scale, address=redis_address, stream=route.stream))
        yield manifests.deployment(work)
        yield manifests.disruption_budget(work)
        yield manifests.scaled_object(work, scale, triggers)


def _image() -> str:
    from importlib.metadata import version

    return f"headrace-worker:{version('headrace')}"
