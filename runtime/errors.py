"""Errors of the runtime. Those of the contract are in shared_models.errors, beside the root."""

from __future__ import annotations

from typing import ClassVar

from shared_models.dead_letter import ErrorInfo
from shared_models.errors import HeadraceError


class SettingsError(HeadraceError):
    """The configuration is wrong; nothing was started."""

    code = "settings_invalid"


# --- registry -------------------------------------------------------------------------------------------------------


class RegistryError(HeadraceError):
    """A flow or its route spec cannot be registered."""

    code = "registry_error"


class FlowInvalid(RegistryError):
    """The file is not a Langflow export."""

    code = "flow_invalid"


class RouteInvalid(RegistryError):
    """The route spec is wrong."""

    code = "route_invalid"


class RouteConflict(RegistryError):
    """Two routes claim the same name, or the same stream and group."""

    code = "route_conflict"


class RouteNotFound(RegistryError):
    """There is no such route."""

    code = "route_not_found"


# --- broker ---------------------------------------------------------------------------------------------------------


class BrokerError(HeadraceError):
    """Redis did not do what was asked."""

    code = "broker_error"


class BrokerUnavailable(BrokerError):
    """Redis cannot be reached."""

    code = "redis_unavailable"
    retryable = True


class AccessDenied(BrokerUnavailable):
    """Redis does not let this user in, or it cannot be trusted: a password, a certificate."""


class ServerUnfit(BrokerError):
    """The server can never serve a worker as it is; waiting does not help."""

    code = "redis_unfit"


class GroupMissing(BrokerError):
    """The stream or its consumer group does not exist."""

    code = "group_missing"
    retryable = True


class LeaseLost(BrokerError):
    """The worker's lease has ended; another may run its entries."""

    code = "lease_lost"


class OutcomeTooLarge(BrokerError):
    """The outcome is larger than Redis takes in one command; nothing was sent."""

    code = "result_too_large"


class PublishRefused(BrokerError):
    """A target of the outcome is not a stream; nothing was written."""

    code = "publish_refused"

    def __init__(self, message: str | None = None, *, target: str = "") -> None:
        super().__init__(message)
        self.target = target


class DecisionError(BrokerError):
    """A decision for a run that waits for a person was not taken."""

    code = "decision_refused"


class RunNotFound(DecisionError):
    """No such run is known."""

    code = "run_not_found"


class NotWaiting(DecisionError):
    """The run does not wait for this decision."""

    code = "not_waiting"


class AlreadyDecided(DecisionError):
    """Another decision was taken before."""

    code = "already_decided"


class PauseOver(DecisionError):
    """The time for a decision is up, or the run has ended."""

    code = "pause_over"


class DecisionInvalid(DecisionError):
    """The decision is none of those that the run asks for."""

    code = "decision_invalid"


# --- archive --------------------------------------------------------------------------------------------------------


class ArchiveError(HeadraceError):
    """The archive did not do what was asked."""

    code = "archive_error"


class ArchiveUnavailable(ArchiveError):
    """The archive cannot be reached, or none is configured here."""

    code = "archive_unavailable"
    retryable = True


class ObjectRefused(ArchiveError):
    """What an event refers to cannot be had, however often it is tried."""


class ObjectMissing(ObjectRefused):
    """The archive does not have what the event refers to."""

    code = "object_missing"


class ObjectAltered(ObjectRefused):
    """What the archive has is not what the event refers to."""

    code = "object_altered"


class ObjectTooLarge(ObjectRefused):
    """What the event refers to is larger than the limit."""

    code = "payload_too_large"


# --- engine ---------------------------------------------------------------------------------------------------------


class Fault(HeadraceError):
    """A failure that belongs to the event, to the route, or to the moment.

    Raised by the engine for a run that failed, with everything that is known of it in ``info``.
    """

    whose: ClassVar[str] = "moment"

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class EventFault(Fault):
    """The event cannot be processed as it is, however often it is tried."""

    code = "event_fault"
    whose = "event"


class RouteFault(Fault):
    """The route cannot process any event until somebody mends it: a credential, a model, a package, a quota."""

    code = "route_fault"
    whose = "route"


class CheckpointLocked(Fault):
    """What was kept of a run that waited is encrypted with a key that this worker lacks; another may have it."""

    code = "checkpoint_key"


class RunFailed(Fault):
    """The run failed; it may succeed when tried again."""

    code = "run_failed"
    retryable = True


class RunTimeout(RunFailed):
    """The run took longer than the route's timeout."""

    code = "run_timeout"


class EngineError(HeadraceError):
    """The engine cannot load the flow."""

    code = "engine_error"


class LoadTimeout(EngineError):
    """Loading the flow took too long and was given up."""

    code = "load_timeout"


class FlowUnready(EngineError):
    """The flow is a valid export, but something it needs is missing here.

    ``needs`` says, one sentence each, exactly what to add and where.
    """

    code = "flow_unready"

    def __init__(self, message: str | None = None, *, needs: tuple[str, ...] = ()) -> None:
        super().__init__(message or "; ".join(needs) or None)
        self.needs = needs


# --- client ---------------------------------------------------------------------------------------------------------


class GatewayError(HeadraceError):
    """The gateway refused a request.

    ``status`` is the answer's, 0 where there was none; ``code`` is the problem's; ``retry_after`` in seconds.
    """

    code = "gateway_error"

    def __init__(
        self, message: str | None = None, *, status: int = 0, code: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code or type(self).code  # type: ignore[misc]  # the gateway's own word for it
        self.retry_after = retry_after


class GatewayUnavailable(GatewayError):
    """The gateway cannot be reached, or asks to come again later."""

    code = "gateway_unavailable"
    retryable = True
