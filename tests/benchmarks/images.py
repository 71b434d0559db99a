"""What each image installs: ``python -m tests.benchmarks.images [gateway slim full]``.

Carries out the Dockerfile's copies and installs in folders, since no container engine is needed for that, starts the
command, and tells sizes. Needs a registry (or uv's cache).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.dockerfile import play, stages

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Play the named stages, or all."""
    found = stages(ROOT / "k8s" / "image" / "Dockerfile")
    uv = Path(shutil.which("uv") or Path(sys.prefix) / "bin" / "uv")
    for name in sys.argv[1:] or ("gateway", "slim", "full"):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            venv = play(found, f"build-{name}", context=ROOT, place=Path(place), uv=uv)
            told = subprocess.run([venv / "bin" / "headrace", "--version"], capture_output=True, text=True, check=True)
            subprocess.run(
                [venv / "bin" / "headrace", name if name == "gateway" else "worker", "--help"],
                check=True,
                capture_output=True,
            )
            size = sum(f.stat().st_size for f in venv.rglob("*") if f.is_file() and not f.is_symlink())
            packages = len(list(venv.glob("lib/python*/site-packages/*.dist-info")))
        print(
            f"{name:<8} {told.stdout.strip()} {size / 1e6:.0f} MB {packages} packages {time.monotonic() - began:.0f} s"
        )


if __name__ == "__main__":
    main()
