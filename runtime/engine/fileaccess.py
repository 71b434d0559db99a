"""Lets components read a flow's own files. Imports lfx; loaded by LangflowEngine.prepare only.

The engine confines file reads to the run's user and flow directories under its configuration directory, and resolves
links, so that files elsewhere cannot be linked into them. ``NAME.files`` and the directories the operator allows are
added to the roots it checks against, for the run that is going on only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lfx.utils import file_path_security

from runtime.engine.state import ROOTS

_engine_roots = file_path_security._scope_roots


def install() -> None:
    """Put the function in place. May be repeated."""
    file_path_security._scope_roots = _scope_roots


def _scope_roots(data_dir: Path, scope_ids: Any, **options: Any) -> tuple[Path, ...]:
    return (*_engine_roots(data_dir, scope_ids, **options), *(root.resolve() for root in ROOTS.get()))
