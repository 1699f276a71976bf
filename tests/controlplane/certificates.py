"""The webhook as it is installed: several `serve` behind one Service, several `controller`, certificates in a Secret."""

import base64
import socket
import ssl
import sys
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import psutil
import yaml
from cryptography import x509

from certs.rotation import RotationState
from certs.secret import ROTATE, SecretContent, decode
from tests.controlplane.client import accepted
from tests.controlplane.plane import ControlPlane
from tests.controlplane.replicas import FORWARDER
from tests.controlplane.webhook import (
    CONFIGURATION_PATHS,
    NAMESPACE,
    ROOT,
    manifests,
    metrics_of,
    readyz_of,
    uninstall,
)

SECRET = "gpu-admission-certificates"
AUTHORITY = "gpu-admission-ca"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
SECRET_PATH, AUTHORITY_PATH = f"{SECRETS}/{SECRET}", f"{SECRETS}/{AUTHORITY}"
NAME = "zz-gpu-admission"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
SERVICE = "certificate-service"
T = TypeVar("T")


def within(seconds: float, check: Callable[[], T]) -> float:
    """Return after how many seconds `check` was truthy first; AssertionError with its last answer if it never was."""
    begun = time.monotonic()
    while not (answer := check()):
        assert time.monotonic() - begun < seconds, f"not within {seconds} s: {answer!r}"
        time.sleep(0.1)  # a check takes handshakes with all servers, or reads a key
    return time.monotonic() - begun


class Process:
    """A `gpu-admission` process of the plane; it ends with that at the latest."""

    def __init__(self, plane: ControlPlane, name: str, arguments: list[str | Path]) -> None:
        self.name = name
        self._plane = plane
        self._arguments = arguments

    def start(self) -> None:
        command = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "webhook")
        self._plane.processes.start(self.name, [*command, *self._arguments])

    def kill(self) -> None:
        """End it as a crash would, with its children."""
        pid = self._plane.pids.get(self.name)
        for child in psutil.Process(pid).children() if pid else ():
            child.kill()
        self._plane.processes.kill(self.name)

    def terminate(self) -> int | None:
        self._plane.processes.terminate(self.name, grace=30)
        return self._plane.processes.exit_status(self.name)

    def log(self) -> str:
        return self._plane.logs(self.name)


class Server(Process):
    """One `serve` on an address of its own that takes its certificate from the Secret."""

    def __init__(self, plane: ControlPlane, host: int) -> None:
        self.address = plane.service_address(host)
        super().__init__(
            plane,
            f"serve-{host}",
            [
                *("serve", "--kubeconfig", plane.kubeconfig()),
                *("--certificate-secret", f"{NAMESPACE}/{SECRET}"),
                *("--host", self.address, "--port", "443", "--drain-seconds", "0"),
                *("--metrics-host", self.address, "--metrics-port", "9443", "--audit-log", "none"),
            ],
        )

    def readyz(self) -> tuple[int, dict[str, Any]]:
        """Ask as kubelet does, who looks at no certificate; (0, {}) while nobody listens."""
        with socket.socket() as attempt:
            if attempt.connect_ex((self.address, 443)):
                return 0, {}
        try:
            with readyz_of(self.address) as answer:
                return answer.status, msgspec.json.decode(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, msgspec.json.decode(error.read())
        except OSError:
            return 0, {}

    def ready(self) -> bool:
        return self.readyz()[0] == 200

    def metrics(self) -> str:
        return metrics_of(self.address)


class CertificateReconciler(Process):
    def __init__(self, plane: ControlPlane, number: int, *, propagation: float, retirement: float) -> None:
        super().__init__(
            plane,
            f"keeper-{number}",
            [
                *("controller", "--kubeconfig", plane.kubeconfig(), "--namespace", NAMESPACE),
                *("--host", "127.0.0.1", "--port", "0", "--certificate-secret", SECRET),
                *("--propagation-seconds", str(propagation), "--retirement-seconds", str(retirement)),
            ],
        )


class Installation:
    """The API objects of the webhook, and its processes, on `plane`. Nothing runs before `start`."""

    def __init__(
        self,
        plane: ControlPlane,
        *,
        servers: int = 3,
        reconcilers: int = 2,
        propagation: float = 2.0,
        retirement: float = 6.0,
    ) -> None:
        self.plane = plane
        self.client = plane.client()
        self.address = plane.service_address()
        self.host = f"gpu-admission.{NAMESPACE}.svc"
        self.servers = [Server(plane, 10 + number) for number in range(1, servers + 1)]
        self.reconcilers = [
            CertificateReconciler(plane, number, propagation=propagation, retirement=retirement)
            for number in range(1, reconcilers + 1)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        running = self.plane.pids
        for server in self.servers:
            if server.name in running:
                server.kill()
        for reconciler in self.reconcilers:
            if reconciler.name in running:
                reconciler.terminate()  # in order: a killed one would leave its lease to the next test
        if SERVICE in running:
            self.plane.processes.kill(SERVICE)
        uninstall(self.plane)
        for path in (SECRET_PATH, AUTHORITY_PATH):
            self.client.delete(path)

    def apply(self) -> None:
        """Apply deploy/ as an operator would: without a caBundle."""
        documents = manifests(self.address, Path("/dev/null"))
        for document in documents:
            for webhook in document.get("webhooks", ()):
                del webhook["clientConfig"]["caBundle"]
        self.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))

    def start(self) -> None:
        for process in [*self.servers, *self.reconcilers]:
            process.start()
        backends = [f"{server.address}:443" for server in self.servers]
        command: list[str | Path] = [sys.executable, "-I", FORWARDER, f"{self.address}:443", *backends]
        self.plane.processes.start(SERVICE, command)

    def listening(self) -> bool:
        return all(server.readyz()[0] for server in self.servers)

    def ready(self) -> bool:
        return all(server.ready() for server in self.servers)

    def state(self) -> RotationState:
        """Return what controllers share. DamagedError: that is nothing."""
        _, body = self.client.get(AUTHORITY_PATH)
        annotations = body.get("metadata", {}).get("annotations") or {}
        return decode(SecretContent(self.secret(AUTHORITY_PATH), annotations))

    def ask(self, rotation: str) -> None:
        accepted(self.client.patch(AUTHORITY_PATH, {"metadata": {"annotations": {ROTATE: rotation}}}))

    def logs(self) -> str:
        return "\n".join(f"== {each.name}\n{each.log()}" for each in [*self.reconcilers, *self.servers])

    def secret(self, path: str = SECRET_PATH) -> dict[str, bytes]:
        """Return the data of a Secret, that of the servers; nothing if there is none."""
        status, body = self.client.get(path)
        data = (body.get("data") or {}) if status == 200 else {}
        return {key: base64.b64decode(value) for key, value in data.items()}

    def bundles(self) -> list[bytes]:
        found = []
        for path in CONFIGURATION_PATHS:
            _, body = self.client.get(path)
            clients = [webhook["clientConfig"] for webhook in body.get("webhooks", ())]
            found += [base64.b64decode(client.get("caBundle", "")) for client in clients]
        return found

    def served(self, address: str, bundle: bytes) -> x509.Certificate:
        """Shake hands as an API server does that has this caBundle. ssl.SSLError: it would not go on."""
        context = ssl.create_default_context(cadata=bundle.decode())
        with (
            socket.create_connection((address, 443), timeout=10) as connection,
            context.wrap_socket(connection, server_hostname=self.host) as spoken,
        ):
            return x509.load_der_x509_certificate(spoken.getpeercert(binary_form=True) or b"")

    def serve_the_secrets(self) -> bool:
        """Whether every server presents the leaf of the Secret, and every caBundle verifies it."""
        leaf, bundles = self.state().leaf, self.bundles()
        return (
            leaf is not None
            and self.published()
            and all(
                self.served(server.address, bundle) == leaf.certificate
                for server in self.servers
                for bundle in set(bundles)
            )
        )

    def published(self) -> bool:
        bundle = self.secret().get("ca.crt", b"")
        return bool(bundle) and set(self.bundles()) == {bundle}
