"""A data source is handed over once, to the user's own processes, and never lies on a disk."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.spark.credentials import offered, taken

SECRET = "host=db user=job password='correct horse'"


def test_a_pipe_gives_it_once() -> None:
    with offered(SECRET) as path:
        mode, folder_mode = Path(path).stat().st_mode, Path(path).parent.stat().st_mode
        assert stat.S_ISFIFO(mode)
        assert (stat.S_IMODE(mode), stat.S_IMODE(folder_mode)) == (0o600, 0o700)
        assert taken(path) == SECRET
        with pytest.raises(ConfigurationError, match="was read before"):
            taken(path)
    assert not Path(path).parent.exists()


def test_a_file_gives_it_again_and_again(tmp_path: Path) -> None:
    mounted = tmp_path / "secret"
    mounted.write_text(f"{SECRET}\n")
    assert [taken(str(mounted)), taken(str(mounted))] == [SECRET, SECRET]


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        taken(str(tmp_path / "missing"))
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigurationError, match="is empty"):
        taken(str(tmp_path / "empty"))


def test_a_task_that_is_killed_leaves_nothing_to_read(tmp_path: Path) -> None:
    program = (
        "import sys, time; from airflow_outbox.spark.credentials import offered\n"
        "with offered(sys.stdin.read()) as path: print(path, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"TMPDIR": str(tmp_path)}
    ) as task:
        assert task.stdin is not None
        assert task.stdout is not None
        task.stdin.write(SECRET)
        task.stdin.close()
        path = task.stdout.readline().strip()
        task.send_signal(signal.SIGKILL)
        task.wait()
    assert Path(path).is_fifo()
    with pytest.raises(ConfigurationError, match=r"is empty\. If the task that submitted the job has ended"):
        taken(path)
