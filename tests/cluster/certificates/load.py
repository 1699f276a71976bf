"""What must not notice that certificates change."""

import threading
import time
from typing import Self

from tests.cluster.test_burst import gpu_pod, webhook_calls
from tests.controlplane.certificates import Installation, within

PODS = "/api/v1/namespaces/certificates/pods"


class Load:
    """Pods created through the API server without pause, and handshakes by the caBundle of the moment, until it ends."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._create, args=(number,)) for number in range(2)]
        self._threads.append(threading.Thread(target=self._shake_hands))
        self.pods = self.handshakes = 0
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        client = self._installation.client
        assert client.post("/api/v1/namespaces", {"metadata": {"name": "certificates"}})[0] in {201, 409}
        within(60, lambda: client.post(PODS, gpu_pod("probe"), {"dryRun": "All"})[0] == 201)
        self._before = webhook_calls(self._installation.plane)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._installation.client.delete(PODS, {"gracePeriodSeconds": 0})

    def broken_calls(self) -> dict[str, int]:
        """Return what the API server could not call, including what it let pass for that."""
        after = webhook_calls(self._installation.plane) - self._before
        return {
            f"{metric} {hook} {kind}": count
            for (metric, hook, kind), count in after.items()
            if metric == "fail_open_count" or kind == "calling_webhook_error"
        }

    def _create(self, number: int) -> None:
        while not self._ended.is_set():
            status, answer = self._installation.client.post(
                PODS, gpu_pod(f"pod-{number}-{self.pods}-{time.monotonic_ns()}")
            )
            self.pods += 1
            if status != 201:
                self.failures.append(str(answer))

    def _shake_hands(self) -> None:
        while not self._ended.wait(0.02):
            for bundle in set(self._installation.bundles()):
                for server in self._installation.servers:
                    try:
                        self._installation.served(server.address, bundle)
                    except OSError as error:
                        self.failures.append(f"{server.name}: {error}")
                    self.handshakes += 1
