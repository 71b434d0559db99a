"""What ``headrace flows check`` says about a flow. Loads nothing of Langflow."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from runtime.engine.needs import Need, NeedKind
from runtime.engine.upgrade import ComponentState, ComponentVerdict


class Verdict(StrEnum):
    """ready: it runs. unready: something is missing here, see ``needs``. invalid: it can never load, see ``error``."""

    READY = "ready"
    UNREADY = "unready"
    INVALID = "invalid"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class NeedReport(_Model):
    """One thing to add, and where. ``message`` is the sentence for people."""

    kind: NeedKind
    message: str
    name: str = ""
    component_id: str | None = None
    component_name: str | None = None
    field: str | None = None

    @classmethod
    def of(cls, need: Need) -> NeedReport:
        """A need as part of a report."""
        return cls(
            kind=need.kind,
            message=need.message,
            name=need.name,
            component_id=need.component_id,
            component_name=need.component_name,
            field=need.field,
        )


class ComponentReport(_Model):
    """One component: its state against the installed version, and the version that saved it where the file says."""

    id: str
    name: str
    type: str
    state: ComponentState
    saved_by: str = ""
    note: str = ""

    @classmethod
    def of(cls, verdict: ComponentVerdict) -> ComponentReport:
        """A verdict as part of a report."""
        return cls(
            id=verdict.id,
            name=verdict.name,
            type=verdict.type,
            state=verdict.state,
            saved_by=verdict.saved_by,
            note=verdict.note,
        )


class FlowReport(_Model):
    """One flow's verdict. ``needs`` is what to add before it runs; ``warnings`` do not stop it."""

    route: str
    path: Path
    version: str
    name: str = ""
    verdict: Verdict
    error: str | None = None
    needs: tuple[NeedReport, ...] = ()
    warnings: tuple[str, ...] = ()
    components: tuple[ComponentReport, ...] = ()
    saved_by: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    cyclic: bool = False
    seconds: float = 0.0
    """How long loading it took."""
