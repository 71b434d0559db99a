"""Flow files and the specs beside them become candidate routes, one file at a time, each fault told for itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from runtime.errors import FlowInvalid, RegistryError, RouteInvalid
from runtime.registry.export import MAX_FILE, FlowDocument, read_flows
from runtime.registry.files import FILES_SUFFIX, SPEC_SUFFIXES, Listing
from runtime.registry.snapshot import Problem, Route
from runtime.registry.spec import nearest, read_spec, split_spec
from runtime.registry.yaml_text import Document, read_yaml
from shared_models.names import slug
from shared_models.route import RouteSpec

T = TypeVar("T")


@dataclass
class Found:
    """What a look at the folder came to.

    ``broken_paths`` and ``broken_names`` are the files and the routes of which nothing can be told now, with the
    reason: what ran of them goes on.
    """

    candidates: list[Route] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    broken_paths: dict[Path, str] = field(default_factory=dict)
    broken_names: dict[str, str] = field(default_factory=dict)

    def broken(self, problem: Problem) -> None:
        """Note a problem that keeps a route, or where no route is named a whole file, from being read anew."""
        self.problems.append(problem)
        if problem.route is None:
            self.broken_paths.setdefault(problem.path, problem.message)
        else:
            self.broken_names.setdefault(problem.route, problem.message)


@dataclass(frozen=True, slots=True)
class _Spec:
    """A spec file that was read: its digest, and what it holds or what is wrong with it."""

    path: Path
    version: str
    document: Document
    fault: str | None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where flows were found: their file, the spec beside it, the state of their stored files."""

    path: Path
    spec: _Spec | None
    files_version: str


class Reader:
    """Reads flow files and specs. A file whose bytes were read before is not parsed again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._before: dict[tuple[Path, str], Any] = {}
        self._now: dict[tuple[Path, str], Any] = {}

    def read(self, listing: Listing) -> Found:
        """Every candidate route of a listing, and every problem."""
        found = Found()
        for path, why in listing.unreadable.items():
            found.broken(Problem(path, None, "unreadable", f"{self.shown(path)} cannot be read: {why}"))
        specs: dict[tuple[Path, str], list[Path]] = {}
        for path in listing.specs:
            specs.setdefault((path.parent, path.stem), []).append(path)
        for path in listing.flows:
            if hidden := _spec_unreadable(path, listing):
                found.broken_paths[path] = hidden  # not as if it had none
                continue
            self._flow_file(path, specs.get((path.parent, path.stem), []), listing, found)
        # A flow that cannot be seen just now has not left its spec alone.
        seen = {(path.parent, path.stem) for path in (*listing.flows, *listing.unreadable)}
        for key, paths in specs.items():
            if key not in seen:
                found.problems.extend(self._orphan(path, listing.flows) for path in paths)
        self._before, self._now = self._now, {}
        return found

    def shown(self, path: Path) -> str:
        """The path as people know it: from the flows folder on."""
        return str(path.relative_to(self._root.parent)) if path.is_relative_to(self._root.parent) else str(path)

    def _flow_file(self, path: Path, specs: Sequence[Path], listing: Listing, found: Found) -> None:
        try:
            if (size := listing.sizes[path]) > MAX_FILE:
                raise FlowInvalid(f"has {size:,} bytes; a flow file may have at most {MAX_FILE:,}")
            raw = path.read_bytes()
            zipped = path.suffix.lower() == ".zip"
            flows = self._once(path, raw, lambda: read_flows(raw, zipped=zipped))
            spec = self._spec_file(specs) if specs else None
        except OSError as error:
            found.broken(Problem(path, None, "unreadable", f"{self.shown(path)} cannot be read: {error.strerror}"))
            return
        except FlowInvalid as error:
            name = slug(path.stem) or None
            found.problems.append(Problem(path, name, error.code, f"{self.shown(path)} {error.message}"))
            found.broken_paths[path] = error.message
            return
        stored = listing.attachments.get(path.with_name(path.stem + FILES_SUFFIX), {})
        place = _Place(path, spec, _files_version(stored))
        if len(flows) == 1 and flows[0].title is None:
            self._add(slug(path.stem), flows[0], place, found)
        else:
            self._add_several(flows, place, found)

    def _add(self, name: str, flow: FlowDocument, place: _Place, found: Found) -> None:
        shown = self.shown(place.path)
        if not name:
            what = "file" if flow.title is None else "flow"
            message = f"{shown}: a route's name needs a letter or a digit; rename the {what}"
            found.problems.append(Problem(place.path, None, RouteInvalid.code, message))
            return
        if flow.fault:
            found.broken(Problem(place.path, name, FlowInvalid.code, f"{shown}: {flow.fault}"))
            return
        try:
            found.candidates.append(_route(name, flow, place))
        except RegistryError as error:
            at = place.spec.path if place.spec else place.path
            found.broken(Problem(at, name, error.code, f"{self.shown(at)}: {error.message}"))

    def _add_several(self, flows: Sequence[FlowDocument], place: _Place, found: Found) -> None:
        names = [slug(flow.title or "") for flow in flows]
        specs: dict[str, _Spec] = {}
        if place.spec is not None:
            try:
                specs = dict(_split(place.spec, set(names) - {""}))
            except RegistryError as error:
                message = f"{self.shown(place.spec.path)}: {error.message}"
                found.problems.append(Problem(place.spec.path, None, error.code, message))
                found.broken_names.update(dict.fromkeys(names, message))
                return
        for name, flow in zip(names, flows, strict=True):
            self._add(name, flow, replace(place, spec=specs.get(name)), found)

    def _spec_file(self, paths: Sequence[Path]) -> _Spec:
        if len(paths) > 1:
            names = " and ".join(self.shown(path) for path in paths)
            return _Spec(paths[0], "", Document(), f"there are two specs, {names}; keep one")
        raw = paths[0].read_bytes()
        return self._once(paths[0], raw, lambda: _read_spec_file(paths[0], raw))

    def _once(self, path: Path, raw: bytes, read: Callable[[], T]) -> T:
        key = (path, hashlib.sha256(raw).hexdigest())
        found: T = self._before[key] if key in self._before else read()
        self._now[key] = found
        return found

    def _orphan(self, path: Path, flows: Sequence[Path]) -> Problem:
        near = nearest(path.stem, [flow.stem for flow in flows if flow.parent == path.parent])
        meant = f"; did you mean {near}{path.suffix}?" if near else ""
        message = f"{self.shown(path)} is a route spec without a flow: there is no {path.stem}.json beside it{meant}"
        return Problem(path, slug(path.stem) or None, RouteInvalid.code, message)


def _spec_unreadable(flow: Path, listing: Listing) -> str | None:
    specs = (flow.with_suffix(suffix) for suffix in sorted(SPEC_SUFFIXES))
    return next(
        (f"{path.name} cannot be read: {listing.unreadable[path]}" for path in specs if path in listing.unreadable),
        None,
    )


def _read_spec_file(path: Path, raw: bytes) -> _Spec:
    version = hashlib.sha256(raw).hexdigest()
    try:
        return _Spec(path, version, read_yaml(raw), None)
    except RouteInvalid as error:
        return _Spec(path, version, Document(), error.message)


def _valid(spec: _Spec) -> RouteSpec:
    if spec.fault:
        raise RouteInvalid(spec.fault)
    return read_spec(spec.document)


def _split(spec: _Spec, names: set[str]) -> Iterator[tuple[str, _Spec]]:
    """The part of a spec file that is each route's."""
    if spec.fault:
        raise RouteInvalid(spec.fault)
    for given, part in split_spec(spec.document).items():
        if (name := slug(given)) not in names:
            near = nearest(name, sorted(names))
            meant = f"did you mean {near}?" if near else f"there are {', '.join(sorted(names))}"
            raise RouteInvalid(
                f"line {spec.document.line(('flows', given))}: there is no flow {given!r} in the file; {meant}"
            )
        yield name, _Spec(spec.path, spec.version, part, None)


def _route(name: str, flow: FlowDocument, place: _Place) -> Route:
    spec = place.spec
    if spec is None:
        return Route(name, RouteSpec(), flow.version, "", flow.export, place.path, files_version=place.files_version)
    route = Route(
        name=name,
        spec=_valid(spec),
        version=flow.version,
        spec_version=spec.version,
        export=flow.export,
        path=place.path,
        spec_path=spec.path,
        files_version=place.files_version,
    )
    for key, target in (("results.stream", route.results), ("dead_letter", route.dead_letters)):
        if target == route.stream:
            raise RouteInvalid(f"{key} is the stream {target!r} that the route itself reads: it would never end")
    return route


def _files_version(stored: Mapping[Path, tuple[int, ...]]) -> str:
    if not stored:
        return ""
    listed = "\n".join(f"{path}\t{stamp[0]}\t{stamp[2]}" for path, stamp in sorted(stored.items()))
    return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()
