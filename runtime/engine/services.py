"""The engine's process-wide services, set once. Imports lfx; loaded by LangflowEngine.prepare only."""

from __future__ import annotations

import logging
from typing import Any

import structlog
from lfx.graph.checkpoint.store import CheckpointStore, set_default_checkpoint_store
from lfx.log.logger import logger as lfx_logger
from lfx.services.deps import get_service
from lfx.services.manager import get_service_manager
from lfx.services.schema import ServiceType
from lfx.services.variable.service import VariableService


def set_services() -> None:
    """Register the variable service, build what is looked up on the loop. May be repeated."""
    manager = get_service_manager()
    get_service(ServiceType.SETTINGS_SERVICE)
    if ServiceType.VARIABLE_SERVICE not in manager.services:
        manager.register_service_class(ServiceType.VARIABLE_SERVICE, VariableService, override=True)
    get_service(ServiceType.VARIABLE_SERVICE)
    get_service(ServiceType.EXECUTOR_SERVICE)  # its first look-up imports plug-ins
    set_default_checkpoint_store(NoCheckpoints())


class NoCheckpoints(CheckpointStore):  # type: ignore[misc]
    """Keeps nothing: a paused run is an error here. The engine's default would keep each one in memory."""

    async def save(self, checkpoint: Any) -> None:
        """Keep nothing."""

    async def load(self, checkpoint_id: str) -> None:
        """Nothing."""

    async def delete(self, checkpoint_id: str) -> None:
        """Nothing to delete."""

    async def load_by_run_id(self, run_id: str) -> None:
        """Nothing."""

    async def list_by_session(self, session_id: str) -> list[Any]:
        """Nothing."""
        return []

    async def save_blob(self, job_id: str, kind: str, blob: str) -> None:
        """Keep nothing."""

    async def load_blob(self, job_id: str, kind: str) -> None:
        """Nothing."""


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
