"""The root of Headrace's errors, and those that the contract itself raises."""

from __future__ import annotations

from typing import ClassVar


class HeadraceError(Exception):
    """Headrace could not do what was asked.

    ``code`` is stable and machine-readable: it is what a dead letter and a log line carry. ``retryable`` says whether
    the same work may succeed later without anybody changing anything. The first line of a subclass's docstring is its
    message where none is given.
    """

    code: ClassVar[str] = "headrace_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or _first_line(type(self)))

    @property
    def message(self) -> str:
        """What was wrong, where, and what to do, in one sentence or two."""
        return str(self.args[0])


def _first_line(kind: type[HeadraceError]) -> str:
    return (kind.__doc__ or kind.__name__).strip().splitlines()[0]


class ContractError(HeadraceError):
    """The event is not one that Headrace understands."""

    code = "event_invalid"

    def __init__(self, message: str | None = None, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        """The stream field at fault, where one can be named."""


class EnvelopeInvalid(ContractError):
    """A field of the event has the wrong form."""

    code = "event_invalid"


class VersionUnsupported(ContractError):
    """The event was written for a schema version that this worker does not know."""

    code = "schema_unsupported"


class PayloadTooLarge(ContractError):
    """The payload is larger than the limit."""

    code = "payload_too_large"


class Expired(ContractError):
    """The event's expires_at had passed before it was run."""

    code = "event_expired"
