"""Deadlines of an orderly end, all in seconds after it was asked for: each level waits longer than the one below it.

    a child        finishes its runs (grace), writes the last outcomes, leaves its groups
    the supervisor kills a child that is late, hands on what it held
    `headrace up`  kills a supervisor that is late

A platform that kills a worker by itself should wait for longer than ``of_supervisor``.
"""

from __future__ import annotations

LAST_WRITES = 10.0
"""For released attempts and last outcomes to be written after the grace."""

GOODBYE = 10.0
"""For a child to leave its groups: one command's time-out, where Redis does not answer."""

MARGIN = 5.0
"""For what comes after: to kill, to wait for the end, to hand on."""


def of_child(grace: float) -> float:
    """When a child has ended by itself."""
    return grace + LAST_WRITES + GOODBYE


def of_kill(grace: float) -> float:
    """When the supervisor kills a child that has not."""
    return of_child(grace) + MARGIN


def of_supervisor(grace: float) -> float:
    """When the supervisor has ended: those that it killed were waited for, and their entries handed on."""
    return of_kill(grace) + 2 * MARGIN


def of_up(grace: float) -> float:
    """When `headrace up` kills a worker that has not."""
    return of_supervisor(grace) + MARGIN
