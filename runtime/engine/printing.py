"""Tables are written out as text by one thread at a time. Imports lfx; loaded by LangflowEngine.prepare only.

pandas keeps in options of the whole process how it writes a table, and changes one of them while it does; so does the
engine for each table that it shows a model, an agent's tool result for one. Of two runs that write at the same time,
one would have its cells cut off after fifty characters, and the option could stay changed for good.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pandas as pd
from lfx.schema.dataframe import Table

_lock = threading.RLock()
"""Held by functions only that wait for nobody else. A table's cells may be tables."""


def install() -> None:
    """Put the functions in place. May be repeated."""
    for owner, name, written in _WRITERS:
        setattr(owner, name, written)


def _alone(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    def written(*args: Any, **options: Any) -> Any:
        with _lock:
            return write(*args, **options)

    return written


_WRITERS = [
    (owner, name, _alone(owner.__dict__[name]))
    for owner, names in (
        (Table, ("__repr__", "__str__")),
        (pd.DataFrame, ("__repr__", "to_string", "to_html", "_repr_html_")),
        (pd.Series, ("__repr__", "to_string")),
    )
    for name in names
]
