"""The end of a process that has used Kafka's client: without the last steps of the interpreter and the C library.

Threads of the client may still wait for a server that does not answer. In these last steps Python takes itself apart
and OpenSSL frees what it has, while those threads go on: now and then the process then dies by a signal, and its exit
status is lost.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from airflow_outbox.harvest.output import drain

_PATIENCE = 0.5  # with who does not read the last lines
_UNWRITABLE = {errno.EAGAIN, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE}


def leave(status: int, *, unwritten: OSError | None = None) -> NoReturn:
    """End at once. Output that can't be written makes a status of 0 a 1, and is said in a line on stderr.

    `unwritten` is why some of it could not be written already.
    """
    drain(_PATIENCE)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            unwritten = unwritten or error
        except ValueError:  # the stream is closed
            status = status or 1
    if unwritten is not None:
        status = status or 1
        if unwritten.errno != errno.EPIPE:  # a reader that has gone away knows it
            with contextlib.suppress(OSError, ValueError):
                print(f"Error: the output can't be written: {unwritten.strerror}", file=sys.stderr, flush=True)
    os._exit(status)


def leave_after(program: Callable[[], object]) -> NoReturn:
    """Run a program to its end, and end with its status, as the interpreter would: 0 unless it says another.

    Letters that the output's encoding lacks come as escapes.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    status: object = 1
    unwritten = None
    try:
        program()
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
            unwritten = error
        else:
            with contextlib.suppress(OSError, ValueError):
                traceback.print_exc()
    if isinstance(status, str):
        with contextlib.suppress(OSError, ValueError):
            print(status, file=sys.stderr)
    atexit._run_exitfuncs()
    leave(status if isinstance(status, int) else int(status is not None), unwritten=unwritten)
