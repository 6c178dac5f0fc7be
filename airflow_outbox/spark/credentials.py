"""How a task hands the data source, which has a password in it, to the driver of the job that it submits.

It uses a named pipe. The content is in the kernel's memory, for anyone who may open the pipe. It is gone once it is
read or the task has ended, in any way. A plain file, for instance a mounted secret, is read as well.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_outbox.errors import ConfigurationError

_MAX_BYTES = 65_536  # a pipe's capacity on Linux; a data source is far smaller


@contextmanager
def offered(data_source: str) -> Iterator[str]:
    """Yield the path of a pipe that holds the data source for one reader of this user while the block lasts."""
    with tempfile.TemporaryDirectory(prefix="airflow-outbox-") as folder:
        path = Path(folder) / "data_source"
        os.mkfifo(path, 0o600)
        pipe = os.open(path, os.O_RDWR)  # O_WRONLY would wait for a reader
        try:
            os.write(pipe, data_source.encode())
            yield str(path)
        finally:
            os.close(pipe)


def taken(path: str) -> str:
    """Read the data source from a pipe, once, or from a file. Raises ConfigurationError."""
    try:
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            data_source = os.read(source, _MAX_BYTES).decode().strip()
        finally:
            os.close(source)
    except BlockingIOError:
        raise ConfigurationError(f"{path} was read before. Let the job ask for its settings only once") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}. The driver must be able to read the file") from error
    if not data_source:
        raise ConfigurationError(f"{path} is empty. If the task that submitted the job has ended, submit the job again")
    return data_source
