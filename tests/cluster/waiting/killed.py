"""`gpu-admission controller` that is killed once it has removed so many scheduling gates: `python -m … NUMBER --kubeconfig …`."""

import os
import signal
import sys
import threading

from webhook.cluster.api import ApiClient
from webhook.commands import run


def kill_after(number: int) -> None:
    patch, one_at_a_time, done = ApiClient.patch, threading.Lock(), 0

    def counted(api: ApiClient, path: str, body: bytes, **options: object) -> bytes:
        nonlocal done
        if "/pods/" not in path:
            return patch(api, path, body, **options)  # type: ignore[arg-type]
        with one_at_a_time:
            if done == number:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return patch(api, path, body, **options)  # type: ignore[arg-type]

    ApiClient.patch = counted  # type: ignore[assignment]


kill_after(int(sys.argv.pop(1)))
sys.argv.insert(1, "controller")
run()
