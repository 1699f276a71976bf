"""Outlives its parent by a moment: kills the process group that it leads and removes their folder.

Run as a script with the parent's pid and the folder. A parent that ends in an orderly way stops everything
itself and this process last; one that dies in whatever way, SIGKILL included, cannot. (PR_SET_PDEATHSIG would
be tied to the thread that started a process, and would leave the folder behind.)
"""

import os
import shutil
import signal
import sys
import time


def main(parent: int, folder: str) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == parent:
        time.sleep(0.2)
    group = os.getpgrp()
    if os.fork():
        signal.pause()  # the group's leader: killed with it
    os.setpgid(0, 0)
    os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while os.path.exists(folder) and time.monotonic() < deadline:  # noqa: PTH110  # -S: nothing but the bare minimum
        shutil.rmtree(folder, ignore_errors=True)  # a dying process may still be writing: again
        time.sleep(0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
