"""`gpu-admission controller` for tests: `python -m … [traced SECONDS | sampled 0] --kubeconfig …`.

It dies in the middle of its work if a file says so. Its Lease runs out after 5 s, so that the other controller takes over sooner.
With `traced` it writes every few seconds how much memory its objects take, with `sampled` only that of the process, which tracing
would enlarge. It remembers pods that are gone for so many seconds; with 0, as long as it does by itself.
"""

import gc
import os
import random
import signal
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import psutil

from webhook.cluster import collection, leader
from webhook.cluster.api import ApiClient
from webhook.commands import run
from webhook.controller import replacements

EVERY = 5.0
MARK = "watched: "
DIE = "die"
"""A file in the working directory. It has the id of the process that dies in the middle of its next removal of a gate."""


def watch() -> None:
    """Write the seconds since 1970, the bytes that Python has allocated, if that is traced, and the resident memory in KiB."""
    while True:
        gc.collect()
        memory = psutil.Process().memory_info().rss // 1024
        allocated, _ = tracemalloc.get_traced_memory()
        sys.stderr.write(f"{MARK}{time.time():.1f} {allocated} {memory}\n")
        time.sleep(EVERY)


def die_in_a_lift() -> None:
    """Have the process killed some milliseconds after it has sent a second removal beside another, if `DIE` says so."""
    patch, file, sent = ApiClient.patch, Path(DIE), set[int]()

    def dying(api: ApiClient, path: str, body: bytes, **options: object) -> bytes:
        if "/pods/" not in path:
            return patch(api, path, body, **options)  # type: ignore[arg-type]
        sent.add(threading.get_ident())
        if len(sent) > 1 and file.exists() and file.read_text() == str(os.getpid()):
            after = random.uniform(0.0, 0.015)  # noqa: S311
            threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
        try:
            return patch(api, path, body, **options)  # type: ignore[arg-type]
        finally:
            sent.discard(threading.get_ident())

    ApiClient.patch = dying  # type: ignore[assignment]


def main() -> None:
    quick = leader.LeaseTimings(lease=5, renew=4, retry=1)
    leader.LeaseTimings = lambda: quick  # type: ignore[assignment,misc]
    die_in_a_lift()
    if sys.argv[1] in {"traced", "sampled"}:
        mode, seconds = sys.argv.pop(1), float(sys.argv.pop(1))
        if seconds:
            collection.DELETED_SECONDS = seconds
            replacements.REPLACED_MS = int(1000 * seconds)  # type: ignore[attr-defined]
        if mode == "traced":
            tracemalloc.start()
        threading.Thread(target=watch, daemon=True).start()
    sys.argv.insert(1, "controller")
    run()


if __name__ == "__main__":
    main()
