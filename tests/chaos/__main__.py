"""`python -m tests.chaos --seed N --seconds S --events E --engine ledger|langflow --server valkey|redis`."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.chaos.run import Plan, Report, run


def main() -> int:
    """Run one plan, print its figures; 1 if anything was broken."""
    words = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--seconds", type=float, default=60.0)
    words.add_argument("--events", type=int, default=5000)
    words.add_argument("--engine", choices=("ledger", "langflow"), default="ledger")
    words.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    words.add_argument("--workers", type=int, default=3)
    words.add_argument("--every", type=float, default=1.5, help="seconds between faults, on average")
    words.add_argument("--quiet", type=float, default=60.0, help="seconds in which everything must come to rest")
    words.add_argument("--only", action="append", default=[], help="a kind of fault; may be given again")
    words.add_argument("--keep", action="store_true", help="keep the folder with the logs and the ledger")
    words.add_argument("--silent", action="store_true", help="figures only")
    asked = vars(words.parse_args())
    silent = asked.pop("silent")
    report = asyncio.run(run(Plan(**asked), say=(lambda _: None) if silent else _say))
    show(report)
    return 1 if report.broken else 0


def show(report: Report) -> None:
    """Print the figures, and what was broken with its story."""
    for name, value in report.figures.items():
        print(f"{name:50} {value}")
    for what in report.broken:
        print(f"BROKEN {what}")
    for story in report.stories:
        print(story)
    if report.folder is not None:
        print(f"kept: {report.folder}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
