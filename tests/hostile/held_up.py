"""A harvester whose event loop can be held up: by SIGUSR1, for as long as the file is there that is named first."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path


def _hold_up(file: Path) -> None:
    while file.exists():
        time.sleep(0.05)


if __name__ == "__main__":
    hold = Path(sys.argv.pop(1))
    signal.signal(signal.SIGUSR1, lambda *_: _hold_up(hold))
    from airflow_outbox.harvest.__main__ import main

    main()
