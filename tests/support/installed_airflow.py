"""Another Airflow than the one that these tests run in, with this project in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def install_airflow(place: Path, *options: str) -> Path:
    """Make an environment with this project and what else pip is given; return its `airflow`."""
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *options, str(ROOT)], check=True)
    return place / "bin" / "airflow"
