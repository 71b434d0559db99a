"""The process as the engine needs it: environment variables before its import, a place for its state.

Loads nothing of Langflow. Everything here may be done twice.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import gc
import logging
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from functools import cache, wraps
from pathlib import Path
from typing import Any

import structlog

from runtime.errors import EngineError

_DEFAULTS = {
    "DO_NOT_TRACK": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # its import would try the network three times
    "LANGFLOW_DEACTIVATE_TRACING": "true",
    "LANGFLOW_FALLBACK_TO_ENV_VAR": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "LANGFLOW_VERTEX_BUILDS_STORAGE_ENABLED": "false",
    "LANGFLOW_TRANSACTIONS_STORAGE_ENABLED": "false",
}


def set_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set what the engine reads at its import, where the user has not set it. Creates a private state directory."""
    for name, value in _DEFAULTS.items():
        environ.setdefault(name, value)
    if not environ.get("LANGFLOW_CONFIG_DIR"):
        environ["LANGFLOW_CONFIG_DIR"] = private_state_dir()


def check_environment(environ: Mapping[str, str] = os.environ) -> None:
    """Raise EngineError where a variable of the engine's names what does not exist: the engine itself ignores that."""
    for name in environ.get("LANGFLOW_COMPONENTS_PATH", "").split(","):
        if name.strip() and not Path(name.strip()).is_dir():
            raise EngineError(f"LANGFLOW_COMPONENTS_PATH names {name.strip()}, which is not a directory")


def parse_one_at_a_time() -> None:
    """Let one thread at a time into ``ast.parse``, on Pythons that count its recursion for all threads as one.

    Runs parse their components' source on the loop while a load does so in a thread. Where a garbage collection lets
    one in on the other, the parser raises SystemError: a failed attempt, or a flow that does not load (CPython
    gh-106905; mended in 3.11.8).
    """
    if sys.version_info[:3] >= (3, 11, 8) or hasattr(ast.parse, "__wrapped__"):
        return
    parse, lock = ast.parse, threading.RLock()

    @wraps(parse)
    def locked(*args: Any, **keywords: Any) -> Any:
        with lock:
            return parse(*args, **keywords)

    ast.parse = locked


def freeze_heap() -> None:
    """Take what has been imported out of the garbage collector's sight.

    It never becomes garbage, and there is so much of it that each full collection would stop every run for half a
    second.
    """
    gc.collect()
    gc.freeze()


@cache
def private_state_dir() -> str:
    """A directory of this process alone for the engine's secret key and uploads; removed at exit. HOME is not used."""
    path = tempfile.mkdtemp(prefix="headrace-engine-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@contextlib.contextmanager
def keep_logging() -> Iterator[None]:
    """Keep the process's logging over the engine's import, which configures structlog to write to stdout.

    Where nobody had configured structlog, it is set to write to stderr afterwards: stdout belongs to the command.
    """
    configured = structlog.is_configured()
    before = structlog.get_config()
    level, handlers = logging.root.level, list(logging.root.handlers)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the engine's packages warn about their own code: nobody here can mend it
            yield
    finally:
        structlog.reset_defaults()
        if configured:
            structlog.configure(**before)
        else:
            structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
