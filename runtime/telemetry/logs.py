"""Logging: one line per event on stderr, as JSON for collectors or drawn for people, with secrets masked.

A line begins with a stable action word (``worker.ready``, ``event.completed``); what varies is in its fields. Our own
lines, those of libraries that use the standard ``logging`` and those of the engine go through the same pipeline. Other
people's lines are told from WARNING on, unless the level is ``debug``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import structlog

from runtime.telemetry import outlet
from runtime.telemetry.quiet import Quiet
from runtime.telemetry.redact import is_secret_name, mask, may_hold_secret
from shared_models.strict_json import KeptEncoder

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor

    from runtime.settings import LogSettings

OURS = "headrace"
"""Loggers whose names begin with this are our own."""

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Stderr:
    """A logger that writes finished lines to stderr. One that is closed loses lines, never the process.

    Nor does one that nobody reads, in a process whose output is guarded; once it is read again, this tells of the loss.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name

    def msg(self, line: str) -> None:
        try:
            stream = outlet.stderr()
            stream.write(f"{line}\n")
            stream.flush()
        except (OSError, ValueError, AttributeError):  # there may be none
            return
        if (lost := outlet.lost()) > _Config.told_lost:
            _Config.told_lost = lost
            get_logger("headrace.telemetry").warning("output.lost", writes=lost)

    log = debug = info = warn = warning = error = critical = fatal = exception = failure = err = msg


class _Config:
    level = logging.INFO
    processors: tuple[Processor, ...] = ()
    told_lost = 0


def configure(settings: LogSettings) -> None:
    """Set up logging for this process. May be called again."""
    _Config.level = _LEVELS[settings.level]
    drawn = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    _Config.processors = (
        _admit,
        Quiet(),
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _add_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        *((_mask, _console()) if drawn else (_as_json,)),
    )
    structlog.configure(
        processors=_Config.processors,
        wrapper_class=structlog.make_filtering_bound_logger(_Config.level),
        context_class=dict,
        logger_factory=_Stderr,
        # A logger that remembers its pipeline would keep the engine's, if it was first used while that was in place.
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(_Bridge())
    root.setLevel(_Config.level)
    logging.captureWarnings(True)


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger of our own; ``name`` is a dotted name below ``headrace``."""
    return cast("FilteringBoundLogger", structlog.get_logger(name))


class _Bridge(logging.Handler):
    """Hands records of the standard ``logging`` to the same pipeline."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            method = record.levelname.lower() if record.levelname.lower() in _LEVELS else "critical"
            event: EventDict = {"event": record.getMessage()}
            if record.exc_info:
                event["exc_info"] = record.exc_info
            logger, line = _Stderr(record.name), cast("Any", event)
            for processor in _Config.processors:
                line = processor(logger, method, line)
            logger.msg(str(line))
        except structlog.DropEvent:
            pass
        except Exception:  # noqa: BLE001  a record that cannot be told must not harm the code that told it
            self.handleError(record)


def _is_ours(logger: Any) -> bool:
    return str(getattr(logger, "name", "") or "").startswith(OURS)


def _admit(logger: Any, method: str, event: EventDict) -> EventDict:
    if not _is_ours(logger) and _Config.level > logging.DEBUG and method in ("debug", "info"):
        raise structlog.DropEvent
    return event


def _add_name(logger: Any, method: str, event: EventDict) -> EventDict:
    if name := getattr(logger, "name", ""):
        event.setdefault("logger", name)
    return event


_FIRST = ("timestamp", "level", "logger", "event")


def _in_order(event: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: event[name] for name in _FIRST if name in event}, **event}


def _mask(logger: Any, method: str, event: EventDict) -> Mapping[str, Any]:
    # An action word of ours, as the names and times that are added here, is no secret.
    known = _FIRST if _is_ours(logger) else _FIRST[:-1]
    kept = {name: event.pop(name) for name in known if name in event}
    return kept | cast("dict[str, Any]", mask(event))


_ENCODER = KeptEncoder(default=str)
_SCALARS = frozenset({str, int, float, bool, type(None)})


def _as_json(logger: Any, method: str, event: EventDict) -> str:
    # A line for each event: only one that may hold a secret is taken apart.
    if _may_be_masked(event):
        event = dict(_mask(logger, method, event))
    return _ENCODER.encode(_in_order(event))


def _may_be_masked(event: EventDict) -> bool:
    """Whether masking might change a value; False is certain."""
    if _name_secrets(tuple(event)):
        return True
    texts = []
    for name, value in event.items():
        kind = type(value)
        if kind is str:
            if name not in _OWN:
                texts.append(value)
        elif kind not in _SCALARS:
            return True
    return may_hold_secret("\n".join(texts))  # all at once: what stands in one of them stands in all together


_OWN = frozenset({"timestamp", "level", "logger"})


@lru_cache(maxsize=256)
def _name_secrets(names: tuple[str, ...]) -> bool:
    return any(map(is_secret_name, names))


def _console() -> Processor:
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=24
    )
