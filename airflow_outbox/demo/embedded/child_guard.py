"""Hold a server that must not outlive the process that started it.

Run as a script: `python -I -S child_guard.py PARENT_PID ABANDON_SIGNAL USER COMMAND…`. It starts the command (as USER,
unless that is empty), prints its process id on standard output, and ends when the command ends, with its exit status.
The command's output goes to standard error.

When the parent is gone, however it ended, the command gets ABANDON_SIGNAL and five seconds later SIGKILL. When this
process itself is killed, the kernel kills the command. The kernel ties that to the *thread* that forked. Here there is
only one; in the parent it could be any, so this process stands between. It watches its parent's id and not a pipe:
other processes that the parent forked would hold a pipe open.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import subprocess
import sys

PARENT_CHECK_SECONDS = 0.25
ABANDON_GRACE_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_WAKING = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def hold(command: list[str], *, parent: int, abandon_signal: signal.Signals, user: str) -> int:
    """Start the command and hold it until it ends or the parent is gone; return its exit status as a shell would."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAKING)
    entry = pwd.getpwnam(user) if user else None
    libc = ctypes.CDLL(None, use_errno=True)

    def enter() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        if entry is not None:
            os.setgroups([entry.pw_gid])
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
        # After the change of user, which would clear it.
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")

    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, cwd="/", preexec_fn=enter)
    os.write(1, b"%d\n" % server.pid)
    os.close(1)
    while server.poll() is None:
        waking = signal.sigtimedwait(_WAKING, PARENT_CHECK_SECONDS)
        if os.getppid() != parent or (waking is not None and waking.si_signo != signal.SIGCHLD):
            _end(server, abandon_signal)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _end(server: subprocess.Popen[bytes], abandon_signal: signal.Signals) -> None:
    server.send_signal(abandon_signal)
    server.send_signal(signal.SIGCONT)  # a stopped process would keep the signal pending
    try:
        server.wait(ABANDON_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(
        hold(
            sys.argv[4:],
            parent=int(sys.argv[1]),
            abandon_signal=signal.Signals(int(sys.argv[2])),
            user=sys.argv[3],
        )
    )
