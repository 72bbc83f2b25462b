"""Run a server program so that it dies with the process that started it. Run as a script; imports nothing of ours.

    python -I launch.py PARENT_PID UID GID program arguments…

It becomes another user where one is given (-1 = stay), sets the parent-death signal (Linux; other systems have none),
then replaces itself with the program, so the process id stays the same. It is a program of its own, and not a
`preexec_fn`, because code between fork and exec is not safe in a process that has threads. The signal belongs to the
*thread* that started us: start servers from a thread that lives as long as they shall.
"""

from __future__ import annotations

import os
import signal
import sys

if sys.platform == "linux":
    import ctypes

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the program."""
    parent, uid, gid = (int(text) for text in sys.argv[1:4])
    program = sys.argv[4:]
    # Python ignores SIGPIPE, and what is ignored stays ignored across exec; servers expect the default.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if uid >= 0:
        # From here on Python's own files may be out of reach: everything is imported.
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of user would clear it
    if os.getppid() != parent:
        sys.exit("the process that started this server is gone")
    os.execv(program[0], program)  # noqa: S606 - no shell is what we want


if __name__ == "__main__":
    main()
