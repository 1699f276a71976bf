"""Several `serve` processes behind one Service, as a Deployment of the webhook has them."""

import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Self

from tests.controlplane.plane import ControlPlane
from tests.controlplane.webhook import READY_WITHIN, ROOT, Calls, Webhook, install, manifests, uninstall

FORWARDER = Path(__file__).with_name("forwarder.py")
NAME = "webhook-service"


class Replicas:
    """`count` processes for `plane`, whose Service spreads connections over them, for the length of a `with` block.

    With `follow` it leads new connections to those that are ready, and learns of a change so many seconds late. `source` and
    `installation` are as for one Webhook.
    """

    def __init__(
        self,
        plane: ControlPlane,
        count: int,
        *,
        host: int = 10,
        config: Path | None = None,
        arguments: tuple[str | Path, ...] = (),
        follow: float | None = None,
        source: Path = ROOT,
        installation: str = "default",
    ) -> None:
        self._plane = plane
        self._source = source
        self._follow = follow
        self.address = plane.service_address(host)
        self._certificates = plane.processes.folder / "webhook-certificates"
        self.each = [
            Webhook(
                plane,
                config=config,
                host=host + number,
                arguments=arguments,
                certificates=self._certificates,
                source=source,
                installation=installation,
            )
            for number in range(1, count + 1)
        ]

    def start(self) -> None:
        """Start the processes that do not run."""
        for webhook in self.each:
            if webhook.name not in self._plane.pids:
                webhook.start()

    def __enter__(self) -> Self:
        self.start()
        backends = [f"{webhook.address}:443" for webhook in self.each]
        follow = () if self._follow is None else ("--follow", str(self._follow))
        self._plane.processes.start(
            NAME, [sys.executable, "-I", FORWARDER, *follow, f"{self.address}:443", *backends]
        )
        deadline = time.monotonic() + READY_WITHIN
        while not self._accepts():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the Service did not start:\n{self._plane.logs(NAME)}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        for webhook in self.each:
            if webhook.name in self._plane.pids:
                webhook.kill()
        self._plane.processes.kill(NAME)

    def register(self) -> None:
        """Apply deploy/ as an operator would, and return once the API server calls us."""
        authority = self._certificates / "ca.crt"
        install(self._plane, manifests(self.address, authority, self._source), self.calls)

    def unregister(self) -> None:
        uninstall(self._plane)

    def calls(self) -> Calls:
        return sum((webhook.calls() for webhook in self.each), Counter())

    def _accepts(self) -> bool:
        with socket.socket() as attempt:
            return attempt.connect_ex((self.address, 443)) == 0
