"""A server of the no-op webhook beside a control plane."""

import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Self

from certs.files import ensure_self_signed
from tests.bench.measure import ROOT
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import SERVER_NAME as OUR_NAME

SERVER_NAME = "noop.bench.svc"
THREADS = 32
READY_WITHIN = 30


class NoopServer:
    """One server of tests.bench.noop for the length of a `with` block; port 443 of an address of the plane's, which it dies with.

    On our server, or with `stock` on gunicorn's own gthread worker with as many threads and as long a keep-alive. With `answers`,
    those by path, which have UID where that of the review belongs.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *,
        host: int,
        stock: bool = False,
        answers: Mapping[str, str] | None = None,
    ) -> None:
        self._plane = plane
        self._stock = stock
        self._answers = answers
        self._name = f"noop-{host}"
        self.address = plane.service_address(host)
        folder = plane.processes.folder / self._name
        names = [SERVER_NAME, OUR_NAME, self.address]
        self._certificate, self._key = ensure_self_signed(folder, names, datetime.now(UTC))
        self.ca_file = folder / "ca.crt"

    @property
    def pid(self) -> int:
        return self._plane.pids[self._name]

    def __enter__(self) -> Self:
        command = self._stock_command() if self._stock else self._our_command()
        self._plane.processes.start(self._name, ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", *command])
        deadline = time.monotonic() + READY_WITHIN
        while not self._is_there():
            if self._plane.processes.exit_status(self._name) is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._name} did not start:\n{self._plane.logs(self._name)}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._plane.processes.terminate(self._name, grace=1)

    def _our_command(self) -> list[str]:
        settings = {
            "certificate": str(self._certificate),
            "key": str(self._key),
            "host": self.address,
            "port": 443,
            "metrics_host": self.address,
            "metrics_port": 9443,
            "threads": THREADS,
            "drain_seconds": 0,
            "answers": self._answers,
        }
        return ["tests.bench.noop", json.dumps(settings)]

    def _stock_command(self) -> list[str]:
        return [
            *("gunicorn", "tests.bench.noop:app", "--bind", f"{self.address}:443"),
            *("--worker-class", "gthread", "--threads", str(THREADS), "--keep-alive", "110"),
            *("--certfile", str(self._certificate), "--keyfile", str(self._key)),
            "--no-control-socket",
        ]

    def _is_there(self) -> bool:
        context = ssl.create_default_context(cafile=self.ca_file)
        try:
            urllib.request.urlopen(f"https://{self.address}/", timeout=5, context=context).close()
        except urllib.error.HTTPError:
            return True  # 404: there is nothing at /
        except OSError:
            return False
        return True
