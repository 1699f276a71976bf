"""The webhook itself beside a control plane: real `gpu-admission serve` processes, installed by the manifests of deploy/.

The Service gets a loopback clusterIP of the plane's range, and the process listens on that very address, so the API server
finds it through the same `clientConfig.service` as in production.
"""

import base64
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.controlplane.plane import ControlPlane

ROOT = Path(__file__).parents[2]
NAMESPACE = "gpu-admission"
SERVER_NAME = f"gpu-admission.{NAMESPACE}.svc"
READY_WITHIN = 30
STOP_WITHIN = 20


class Webhook:
    """One `serve` process for `plane`; between `start` and `stop`, or for the length of a `with` block.

    `arguments` go to `gpu-admission serve`. `audit` is the file of its audit log, `url` where its metrics are.
    """

    def __init__(self, plane: ControlPlane, *, config: Path | None = None, host: int = 10, arguments: tuple[str, ...] = ()) -> None:
        self._plane = plane
        self._config = config
        self._arguments = arguments
        self.address = plane.service_address(host)
        self._folder = tempfile.TemporaryDirectory(prefix="gpu-admission-webhook-")
        self.folder = Path(self._folder.name)
        self.audit = self.folder / "audit.jsonl"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()

    def start(self) -> None:
        """Start the process and return once it is ready."""
        command = [
            *(sys.executable, "-m", "webhook", "serve", "--host", self.address, "--port", "443"),
            *("--metrics-host", self.address, "--metrics-port", "9443", "--drain-seconds", "0"),
            *("--self-signed", str(self.folder / "certs"), "--name", SERVER_NAME, "--name", self.address),
            *("--audit-log", str(self.audit)),
            *(("--config", str(self._config)) if self._config else ()),
            *self._arguments,
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )
        deadline = time.monotonic() + READY_WITHIN
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the webhook did not start:\n{self.log()}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.address}:9443/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    def register(self) -> None:
        """Apply deploy/ as an operator would, with the clusterIP and the caBundle of this process."""
        for document in self.manifests():
            self._plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(document))

    def unregister(self) -> None:
        for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
            self._plane.kubectl("delete", kind, "zz-gpu-admission", "--ignore-not-found")

    def manifests(self) -> list[dict[str, Any]]:
        """Return what deploy/ holds, adapted to this plane: nothing but clusterIP and caBundle differs."""
        bundle = base64.b64encode((self.folder / "certs" / "ca.crt").read_bytes()).decode()
        documents = []
        for path in sorted((ROOT / "deploy").glob("[0-9]*.yaml")):
            document = yaml.safe_load(path.read_text())
            if document["kind"] == "Service":
                document["spec"]["clusterIP"] = self.address
            for webhook in document.get("webhooks", ()):
                webhook["clientConfig"] = {**webhook["clientConfig"], "caBundle": bundle}
            documents.append(document)
        return documents

    def _answers(self) -> bool:
        try:
            self.metrics()
        except OSError:
            return False
        return True
