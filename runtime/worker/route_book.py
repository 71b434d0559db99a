"""The route book: the registry's snapshot becomes loaded flows on lanes. A broken version never replaces a good one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.engine.base import LOADING, Engine, FlowSource, LoadedFlow
from runtime.errors import BrokerError, BrokerUnavailable, FlowUnready
from runtime.registry.snapshot import Problem, Route, Snapshot
from runtime.worker.callbacks import with_callbacks
from runtime.worker.lanes import ActiveRoute, Lane, Lanes
from runtime.worker.lease import Lease
from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")


class RouteBook:
    """Keeps the lanes as the flows folder says. ``changed`` is called whenever a lane may be read in another way."""

    def __init__(
        self,
        broker: Broker,
        engine: Engine,
        lanes: Lanes,
        *,
        takes: Callable[[Route], bool],
        changed: Callable[[], None],
        worker: str,
        preloaded: Mapping[str, tuple[FlowSource, LoadedFlow]] | None = None,
    ) -> None:
        self._broker = broker
        self._engine = engine
        self._lanes = lanes
        self._takes = takes
        self._changed = changed
        self._worker = worker
        self._preloaded = preloaded or {}
        self._lock = asyncio.Lock()
        self._family: Mapping[str, FlowSource] = {}
        self.problems: tuple[Problem, ...] = ()
        self.snapshot = Snapshot()

    async def apply(self, snapshot: Snapshot) -> None:
        """Load what is new, keep what is not, close what is gone. Runs in flight finish on their own version."""
        async with self._lock:
            snapshot = with_callbacks(snapshot)
            self.snapshot, self.problems = snapshot, snapshot.problems
            mine = {n: r for n, r in snapshot.routes.items() if self._takes(r)}
            family = sources(snapshot.routes)
            moved, self._family = family != self._family, family
            self._engine.set_siblings(family)
            for lane in self._lanes:
                route = mine.get(lane.name)
                gone = route is None or RouteKeys(route.stream, route.group) != lane.keys
                if gone and not lane.closing:
                    log.info("route.closed", route=lane.name, stream=lane.keys.stream)
                    self._lanes.close(lane)
            for name, route in mine.items():
                await self._place(name, route, family_moved=moved)
            read = frozenset(route.stream for route in (*snapshot.routes.values(), *snapshot.disabled.values()))
            for lane in self._lanes:
                lane.read = read
            self._changed()

    async def retry_unready(self) -> None:
        """Try again what could not be loaded: a package, a file or a child flow may have come."""
        if any(lane.active is None or lane.error_code for lane in self._lanes):
            await self.apply(self.snapshot)

    async def listen(self, lease: Lease) -> None:
        """Create the groups, then register the leases: nothing is read before both."""
        lanes = [lane for lane in self._lanes if not lane.closing]
        new = [lane for lane in lanes if not lane.listening]
        # All at once, in few round trips. The first failure is raised when none of them is under way any more.
        opened = await asyncio.gather(*(self._open(lane) for lane in new), return_exceptions=True)
        for result in opened:
            if isinstance(result, BaseException):
                raise result
        refused = {lane.name for lane, good in zip(new, opened, strict=True) if not good}
        if await lease.watch(self._lanes.keys):
            for lane in new:
                lane.listening = lane.hungry = lane.name not in refused
            self._changed()

    async def _open(self, lane: Lane) -> bool:
        """Make a route's group ready. One that Redis refuses (a key of another type, no permission) stops no other."""
        try:
            await self._broker.streams.ensure_group(lane.keys)
            # A flow or a key may have been mended since the route was blocked: ask at once.
            await self._broker.streams.probe_now(lane.keys)
        except BrokerUnavailable:
            raise
        except BrokerError as error:
            if lane.refused != error.message:
                log.error("stream.refused", route=lane.name, stream=lane.keys.stream, error=error.message)  # noqa: TRY400  a sentence
            lane.refused = lane.stale = error.message
            return False
        if lane.refused:
            lane.refused, lane.stale = "", None
        return True

    async def listen_again(self, lease: Lease) -> None:
        """Try again what Redis refused."""
        if any(lane.refused and not lane.closing for lane in self._lanes):
            await self.listen(lease)

    async def part(self, lease: Lease) -> None:
        """Leave the groups of routes that were closed and have nothing in flight any more."""
        async with self._lock:
            done = self._lanes.done()
            read = list(dict.fromkeys(lane.keys for lane in self._lanes if lane not in done))
            # Renewed once more after it has left, the lease would be back with nobody behind it.
            if not done or not await lease.watch(read):
                return
            for lane in done:
                if lane.listening and lane.keys not in read:
                    await self._broker.leases.leave(lane.keys, worker=self._worker, ends=False)
                self._lanes.forget(lane)

    async def _place(self, name: str, route: Route, *, family_moved: bool) -> None:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes.open(name, RouteKeys(route.stream, route.group))
        lane.stale = route.stale
        now = None if lane.error_code else lane.active
        if now is not None and not (family_moved and now.flow.runs_others) and _same_files(now.route, route):
            if (now.route.version, now.route.spec) == (route.version, route.spec):
                return
            if flow_source(now.route) == flow_source(route):
                lane.active = ActiveRoute(route, now.flow)  # the spec alone has changed
                await self._mended(lane)
                return
        await self._load(lane, route)

    async def _load(self, lane: Lane, route: Route) -> None:
        try:
            flow = await self._load_flow(flow_source(route))
        except HeadraceError as error:
            lane.needs = error.needs if isinstance(error, FlowUnready) else ()
            lane.error_code = error.code
            if lane.active is not None and lane.active.route.version == route.version:
                lane.active = None  # no newer version is broken: what this one needs, a file or a flow, is gone
            lane.stale = error.message if lane.active else None
            if not lane.active and not lane.needs:
                lane.needs = (error.message,)
            log.warning(
                "route.unready",
                route=route.name,
                code=error.code,
                error=error.message,
                keeps=lane.active.route.version[:12] if lane.active else None,
            )
            return
        before = lane.active.route.version if lane.active else None
        lane.active, lane.needs, lane.error_code, lane.stale = ActiveRoute(route, flow), (), "", route.stale
        log.info(
            "route.ready",
            route=route.name,
            stream=route.stream,
            group=route.group,
            version=route.version[:12],
            before=before[:12] if before else None,
        )
        await self._mended(lane)

    async def _load_flow(self, source: FlowSource) -> LoadedFlow:
        known, flow = self._preloaded.get(source.route, (None, None))
        if flow is not None and known == source and not flow.runs_others:  # the others may have changed since
            return flow
        return await self._engine.load(source)

    async def _mended(self, lane: Lane) -> None:
        if lane.listening and lane.blocked:
            try:
                await self._broker.streams.probe_now(lane.keys)
            except HeadraceError as error:
                log.debug("route.probe_later", route=lane.name, code=error.code)
        lane.hungry = True


def _same_files(now: Route, route: Route) -> bool:
    return now.files_version == route.files_version


def flow_source(route: Route) -> FlowSource:
    """The route's flow as the engine is told of it."""
    variables: frozenset[str] = frozenset(route.spec.variables)
    if route.spec.event_variables != "any":
        variables |= frozenset(route.spec.event_variables)
    return FlowSource(
        route=route.name,
        version=route.version,
        export=route.export,
        path=route.path,
        files_dir=route.files_dir,
        upgrade=route.spec.upgrade == "safe",
        callback=route.spec.callback if route.callbacks_of else None,
        variables=variables,
        without=route.spec.engine.accelerators.off & LOADING,
    )


def sources(routes: Mapping[str, Route]) -> dict[str, FlowSource]:
    """All of them, by name."""
    return {name: flow_source(route) for name, route in routes.items() if route.callbacks_of is None}
