"""What the registry found on disk: an immutable snapshot of routes and problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shared_models.names import default_dead_letters, default_results, default_stream
from shared_models.route import RouteSpec

INGRESS = frozenset({"webhook", "limits", "callback", "tokens", "timeout"})
"""Keys of a spec that a gateway acts on. It reads no folder: workers tell it. None of them holds a secret itself."""


def ingress_of(spec: RouteSpec) -> dict[str, Any]:
    """What a gateway needs of a spec, as JSON values; what is as by default is left out."""
    return spec.model_dump(mode="json", include=set(INGRESS), exclude_defaults=True)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a file, or a part of it, is not what runs. ``route`` is the route's name where one can be told."""

    path: Path
    route: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Route:
    """A flow bound to a stream, with its spec.

    ``version`` is the SHA-256 of the flow's file in hex, ``spec_version`` that of its spec file ("" without one).
    Of a file that holds several flows, each has the version of its own JSON. ``export`` is the parsed export of this
    one flow, its graph under ``data``; nobody changes it. ``stale`` says why the file on disk is not what runs, where
    the last good version is kept. ``files_version`` changes whenever a stored file of the flow does ("" without any).
    """

    name: str
    spec: RouteSpec
    version: str
    spec_version: str
    export: Mapping[str, Any]
    path: Path
    spec_path: Path | None = None
    stale: str | None = None
    files_version: str = ""
    callbacks_of: str | None = None
    """The route whose callbacks it delivers: it is no flow of the folder, workers have it by themselves."""

    @property
    def stream(self) -> str:
        """The stream it reads."""
        return self.spec.stream or default_stream(self.name)

    @property
    def group(self) -> str:
        """The consumer group it reads with."""
        return self.spec.group

    @property
    def results(self) -> str:
        """Where outcomes go that no publish rule claims."""
        return self.spec.results.stream or default_results(self.stream)

    @property
    def dead_letters(self) -> str:
        """Where its dead letters go."""
        return self.spec.dead_letter or default_dead_letters(self.stream)

    @property
    def files_dir(self) -> Path:
        """Where the flow's files lie."""
        return self.path.with_name(self.path.stem + ".files")

    @property
    def flow_id(self) -> str | None:
        """The export's own id."""
        value = self.export.get("id")
        return value if isinstance(value, str) else None

    @property
    def flow_name(self) -> str | None:
        """The export's own name."""
        value = self.export.get("name")
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every route of a folder and every problem, at one moment. ``disabled`` are those with ``enabled: false``."""

    routes: Mapping[str, Route] = field(default_factory=lambda: MappingProxyType({}))
    problems: tuple[Problem, ...] = ()
    disabled: Mapping[str, Route] = field(default_factory=lambda: MappingProxyType({}))
