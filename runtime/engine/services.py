"""The engine's process-wide services, set once. Imports lfx; loaded by LangflowEngine.prepare only."""

from __future__ import annotations

import logging

import structlog
from lfx.graph.checkpoint.store import set_default_checkpoint_store
from lfx.log.logger import logger as lfx_logger
from lfx.services.deps import get_service
from lfx.services.manager import get_service_manager
from lfx.services.schema import ServiceType
from lfx.services.variable.service import VariableService

from runtime.engine.pauses import RunStore


def set_services() -> None:
    """Register the variable service, build what is looked up on the loop. May be repeated."""
    manager = get_service_manager()
    get_service(ServiceType.SETTINGS_SERVICE)
    if ServiceType.VARIABLE_SERVICE not in manager.services:
        manager.register_service_class(ServiceType.VARIABLE_SERVICE, VariableService, override=True)
    get_service(ServiceType.VARIABLE_SERVICE)
    get_service(ServiceType.EXECUTOR_SERVICE)  # its first look-up imports plug-ins
    set_default_checkpoint_store(RunStore())  # agents look it up there


async def load_templates_if_restricted() -> None:
    """Where only installed components may run, load what tells them: else the first events would all be refused."""
    settings = get_service(ServiceType.SETTINGS_SERVICE).settings
    if not settings.allow_custom_components:
        from lfx.utils.flow_validation import ensure_component_hash_lookups_loaded  # noqa: PLC0415  15 s, rarely wanted

        await ensure_component_hash_lookups_loaded()


def quiet_engine_log(level: int = logging.CRITICAL) -> None:
    """Let lfx log from ``level`` on, through whatever structlog is configured to do.

    lfx logs each failed component with its traceback and the values in it, before anybody has masked a secret: the
    run's error says the same, masked. All of lfx shares one lazy logger, and a wrapper class set on it wins over the
    process's configuration.
    """
    lfx_logger._wrapper_class = structlog.make_filtering_bound_logger(level)
