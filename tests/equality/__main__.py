"""`python -m tests.equality`: all starters and probes under every accelerator, compared with the stock engine."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.equality.matrix import Told, carry_out, compared, part, whole


def main() -> int:
    """Run the whole matrix, print its figures and what is not equal; 1 if anything is not."""
    words = argparse.ArgumentParser(prog="python -m tests.equality", description=__doc__)
    words.add_argument("--part", action="store_true", help="only what the suite runs")
    words.add_argument("--keep", type=Path, help="an empty folder for the plan and for what both sides tell")
    asked = words.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-equality-") as temporary:
        folder = asked.keep or Path(temporary)
        (folder / "flows").mkdir(parents=True)
        told = carry_out((part if asked.part else whole)(folder / "flows"), folder)
    unequal = show(told)
    print(f"{time.monotonic() - began:.0f} s; {unequal} not equal")
    return 1 if unequal else 0


def show(told: Told) -> int:
    """Print a line for each set, and each difference; how many flows of a set are not equal."""
    flows: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    unequal: Counter[str] = Counter()
    for under, _, made, found in compared(told):
        flows[under] += 1
        runs[under] += made
        unequal[under] += bool(found)
        for line in found:
            print(f"UNEQUAL {line}")
    alone = sum(key.isdigit() for of in told.stock.values() for key in of)
    print(f"{'the stock engine, one by one':36} {len(told.stock):3} flows {alone:4} runs")
    for under, count in flows.items():
        print(f"{under:36} {count:3} flows {runs[under]:4} runs {unequal[under]:3} flows not equal")
    return unequal.total()


if __name__ == "__main__":
    sys.exit(main())
