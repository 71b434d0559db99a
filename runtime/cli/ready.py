"""What a worker says once it reads: which routes run, which do not and why."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from runtime.cli.output import note, say


def say_ready(message: Mapping[str, Any], *, more: str = "") -> None:
    """Say it for people; the line that begins with ``ready`` is the sign that events are read."""
    ready, unready = message["ready"], message["unready"]
    for problem in message["problems"]:
        note(f"not a route: {problem}")
    for route, needs in unready.items():
        note(f"not ready: {route}: {'; '.join(needs)}")
    total = len(ready) + len(unready)
    say(f"ready: {len(ready)} of {total} route{'s' if total != 1 else ''}{more}")
    sys.stdout.flush()
