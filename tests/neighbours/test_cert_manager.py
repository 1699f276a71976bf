"""cert-manager: what docs/operate/certificates.md says of certificates and caBundles that it and its injector write."""

import ssl
import sys
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from tests.controlplane.webhook import CONFIGURATION_PATHS, NAMESPACE, PROBE, REGISTRATION, ROOT, SERVER_NAME
from tests.deploy.manifests import rendered
from tests.neighbours.build import CA_INJECTOR, CERT_MANAGER
from tests.neighbours.installation import installed

CERTIFICATES = f"/apis/cert-manager.io/v1/namespaces/{NAMESPACE}/certificates"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/gpu-admission-certificates"
OF_CERT_MANAGER = {"Certificate", "Issuer"}
PODS = "/api/v1/namespaces/default/pods"


class Certified:
    """`serve` and what the chart makes with `certificates.certManager.enabled`: its Secret is mounted as by a kubelet."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane, self._client = plane, plane.client()
        self._address = plane.service_address()
        self._folder = plane.processes.folder / "mounted"
        self._folder.mkdir()
        self.is_mounting = True
        self._stopping = threading.Event()

    def apply(self) -> None:
        options = ("--set", "namespace.create=true,certificates.certManager.enabled=true")
        documents = [each for each in rendered(*options) if each["kind"] in REGISTRATION | OF_CERT_MANAGER]
        for each in documents:
            if each["kind"] == "Service" and each["metadata"]["name"] == "gpu-admission":
                each["spec"]["clusterIP"] = self._address
        self._plane.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(documents))

    @contextmanager
    def serving(self) -> Iterator[None]:
        mounting = threading.Thread(target=self._mount, daemon=True)
        mounting.start()
        try:
            assert eventually((self._folder / "tls.crt").exists, seconds=60), self._plane.logs(
                CERT_MANAGER.name
            )
            self._run()
            assert eventually(self.admits, seconds=60), self._plane.logs(CA_INJECTOR.name)
            yield
        finally:
            self._stopping.set()
            mounting.join(30)

    def _run(self) -> None:
        self._plane.processes.start(
            "webhook",
            [
                *("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "webhook", "serve", "--standalone"),
                *("--host", self._address, "--port", "443", "--metrics-host", self._address),
                *("--tls-cert", self._folder / "tls.crt", "--tls-key", self._folder / "tls.key"),
            ],
        )

    def _mount(self) -> None:
        while not self._stopping.wait(0.2):
            if self.is_mounting:
                for name, content in self.secret().items():
                    Path(self._folder, f"{name}.new").write_bytes(content)
                    Path(self._folder, f"{name}.new").rename(self._folder / name)

    def secret(self) -> dict[str, bytes]:
        data = self._client.get(SECRET)[1].get("data") or {}
        return {name: b64decode(text) for name, text in data.items()}

    def serial(self) -> int:
        """Return the serial number of the certificate in the Secret."""
        return x509.load_pem_x509_certificate(self.secret()["tls.crt"]).serial_number

    def served(self) -> int:
        """Return that of the one that is served."""
        pem = ssl.get_server_certificate((self._address, 443), timeout=10)
        return x509.load_pem_x509_certificate(pem.encode()).serial_number

    def bundles(self) -> set[bytes]:
        """Return the caBundles of both configurations."""
        webhooks = [
            each for path in CONFIGURATION_PATHS for each in accepted(self._client.get(path))["webhooks"]
        ]
        return {b64decode(each["clientConfig"].get("caBundle", "")) for each in webhooks}

    def probe(self) -> tuple[int, Any]:
        return self._client.post(PODS, PROBE, {"dryRun": "All"})

    def admits(self) -> bool:
        """Whether the API server trusts the webhook, and gets an answer."""
        status, answer = self.probe()
        return status == 201 and any(
            each["key"] == "nvidia.com/gpu" for each in answer["spec"]["tolerations"]
        )

    def renew(self, name: str) -> None:
        """Have cert-manager issue a Certificate again, as `cmctl renew` does."""
        path = f"{CERTIFICATES}/{name}"
        before = accepted(self._client.get(path))["status"]
        issuing = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renew"}
        conditions = [each for each in before["conditions"] if each["type"] != "Issuing"]
        accepted(self._client.patch(f"{path}/status", {"status": {"conditions": [*conditions, issuing]}}))
        assert eventually(partial(self._is_issued, path, before["revision"]), seconds=60)

    def _is_issued(self, path: str, revision: int) -> bool:
        certificate: JSON = accepted(self._client.get(path))["status"]
        ready = {each["type"]: each["status"] for each in certificate["conditions"]}
        return certificate["revision"] > revision and ready == {"Ready": "True"}

    def damage(self) -> None:
        for path in CONFIGURATION_PATHS:
            webhooks = accepted(self._client.get(path))["webhooks"]
            for each in webhooks:
                each["clientConfig"]["caBundle"] = ""
            accepted(self._client.patch(path, {"webhooks": webhooks}))


@pytest.fixture(scope="module")
def certified(plane: ControlPlane) -> Iterator[Certified]:
    with installed(plane, CERT_MANAGER), installed(plane, CA_INJECTOR, host=12):
        certified = Certified(plane)
        certified.apply()
        with certified.serving():
            yield certified


def test_its_authority_is_in_each_bundle_and_its_certificate_is_served(certified: Certified) -> None:
    assert certified.bundles() == {certified.secret()["ca.crt"]}
    assert certified.served() == certified.serial()
    leaf = x509.load_pem_x509_certificate(certified.secret()["tls.crt"])
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [SERVER_NAME]


def test_a_renewed_certificate_is_served_without_a_restart_and_no_call_fails(certified: Certified) -> None:
    bundles, serial = certified.bundles(), certified.serial()
    failed: list[Any] = []
    ended = threading.Event()

    def call() -> None:
        while not ended.wait(0.05):
            if not certified.admits():
                failed.append(certified.probe())

    calling = threading.Thread(target=call, daemon=True)
    calling.start()
    certified.renew("gpu-admission")
    assert eventually(lambda: certified.served() == certified.serial() != serial), certified.serial()
    ended.set()
    calling.join(30)
    assert (failed, certified.bundles()) == ([], bundles)


def test_a_bundle_that_is_damaged_is_written_again(certified: Certified) -> None:
    bundles = certified.bundles()
    certified.damage()
    assert eventually(lambda: certified.bundles() == bundles)
    assert eventually(certified.admits)


def test_a_secret_that_is_deleted_is_issued_again(certified: Certified, plane: ControlPlane) -> None:
    bundles, serial = certified.bundles(), certified.serial()
    plane.client().delete(SECRET)
    assert eventually(
        lambda: bool(certified.secret()) and certified.served() == certified.serial() != serial, seconds=60
    )
    assert certified.bundles() == bundles
    assert certified.admits()


def test_a_new_authority_is_added_to_the_bundle_so_that_the_old_certificate_is_trusted(
    certified: Certified,
) -> None:
    before = certified.bundles()
    certified.renew("gpu-admission-ca")
    assert certified.admits()
    assert certified.bundles() == before, "until the certificate is renewed, too"
    certified.is_mounting = False
    certified.renew("gpu-admission")
    both = {*authorities(before), *authorities({certified.secret()["ca.crt"]})}
    assert len(both) == 2
    assert eventually(lambda: authorities(certified.bundles()) == both)
    assert certified.served() != certified.serial()
    assert certified.admits()
    certified.is_mounting = True
    assert eventually(lambda: certified.served() == certified.serial())
    assert certified.admits()


def authorities(bundles: set[bytes]) -> set[int]:
    """Return the serial numbers of the certificates in the bundles."""
    return {each.serial_number for bundle in bundles for each in x509.load_pem_x509_certificates(bundle)}
