"""The end of a process that has used Kafka's client: without the last steps of the interpreter and the C library.

Threads of the client may still wait for a server that does not answer. In these last steps Python takes itself apart
and OpenSSL frees what it has, while those threads go on: now and then the process then dies by a signal, and its exit
status is lost.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """End at once. Output that can't be written makes a status of 0 a 1."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # a full disk, a reader that has gone away, a stream that is closed
            status = status or 1
    os._exit(status)


def leave_after(program: Callable[[], object]) -> NoReturn:
    """Run a program to its end, and end with its status, as the interpreter would: 0 unless it says another."""
    try:
        program()
        status: object = 0
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if isinstance(status, str):
        print(status, file=sys.stderr)
    atexit._run_exitfuncs()
    leave(status if isinstance(status, int) else int(status is not None))
