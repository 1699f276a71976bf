"""What the author of a GPU pod reads when the API server cannot call the webhook, as docs/operate/operations.md quotes it."""

import contextlib
import datetime as dt
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from certs.issue import KeyPair, issue_ca, issue_server
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.outage.samples import pod
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import (
    NAMESPACE,
    SERVER_NAME,
    apply_all,
    manifests,
    set_bundles,
    uninstall,
)

HOST = 65
DAY = dt.timedelta(days=1)
HEARD_OUT = 0.3
"""Seconds without another byte; to close while some are unread would be a reset."""


def authority(before: dt.timedelta = dt.timedelta(0)) -> KeyPair:
    return issue_ca(common_name="test", now=dt.datetime.now(dt.UTC) - before, lifetime=100 * DAY)


def certificate(issuer: KeyPair, name: str = SERVER_NAME, *, age: dt.timedelta = dt.timedelta(0)) -> KeyPair:
    return issue_server(issuer, names=[name], now=dt.datetime.now(dt.UTC) - age, lifetime=DAY)


@contextlib.contextmanager
def presenting(address: str, pair: KeyPair, folder: Path) -> Iterator[None]:
    """Shake hands with whoever connects, hear them out, and close."""
    (folder / "tls.pem").write_bytes(pair.key_pem() + pair.certificate_pem())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.pem")
    listener = socket.create_server((address, 443))

    def serve() -> None:
        with contextlib.suppress(OSError):  # the end of the listener
            while True:
                client, _ = listener.accept()
                client.settimeout(HEARD_OUT)
                with (
                    contextlib.suppress(OSError),
                    context.wrap_socket(client, server_side=True) as spoken,
                    contextlib.suppress(TimeoutError),
                ):
                    while spoken.recv(65536):
                        pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def refusal(plane: ControlPlane, want: str) -> str:
    """Return what a GPU pod is refused with, once the API server knows of the configurations."""

    def said() -> str:
        path = "/api/v1/namespaces/default/pods"
        status, answer = plane.client().post(path, pod(gpu=True), {"dryRun": "All"})
        return "" if status == 201 or want not in answer["message"] else str(answer["message"])

    return eventually(said)


@pytest.fixture
def address(plane: ControlPlane) -> Iterator[str]:
    yield plane.service_address(HOST)
    uninstall(plane)


def register(plane: ControlPlane, address: str, bundle: bytes, folder: Path) -> None:
    (folder / "ca.crt").write_bytes(bundle)
    apply_all(plane, manifests(address, folder / "ca.crt"))


NOW = dt.timedelta(0)
UNKNOWN = "x509: certificate signed by unknown authority"


@cases(
    ("name", "age", "known", "want"),
    another_authority=(SERVER_NAME, NOW, False, f"tls: failed to verify certificate: {UNKNOWN}"),
    another_name=(
        *("elsewhere.svc", NOW, True),
        "x509: certificate is valid for elsewhere.svc, not gpu-admission.gpu-admission.svc",
    ),
    expired=(SERVER_NAME, 2 * DAY, True, "x509: certificate has expired or is not yet valid"),
    closed_without_an_answer=(SERVER_NAME, NOW, True, "EOF"),
)
def test_certificate_that_the_api_server_does_not_take(
    plane: ControlPlane, address: str, tmp_path: Path, *, name: str, age: dt.timedelta, known: bool, want: str
) -> None:
    issuer = authority(before=10 * DAY)
    bundle = issuer if known else authority()
    with presenting(address, certificate(issuer, name, age=age), tmp_path):
        register(plane, address, bundle.certificate_pem(), tmp_path)
        assert want in refusal(plane, want)


def test_no_ca_bundle(plane: ControlPlane, address: str, tmp_path: Path) -> None:
    """As just after an installation: the manifests hold none."""
    issuer = authority()
    with presenting(address, certificate(issuer), tmp_path):
        register(plane, address, issuer.certificate_pem(), tmp_path)
        set_bundles(plane.client(), None)
        assert UNKNOWN in refusal(plane, UNKNOWN)


def test_ca_bundle_of_something_else(plane: ControlPlane, address: str, tmp_path: Path) -> None:
    register(plane, address, authority().certificate_pem(), tmp_path)
    set_bundles(plane.client(), b"-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n")
    want = "unable to load root certificates"
    assert want in refusal(plane, want)


def test_service_gone(plane: ControlPlane, address: str, tmp_path: Path) -> None:
    register(plane, address, authority().certificate_pem(), tmp_path)
    plane.client().delete(f"/api/v1/namespaces/{NAMESPACE}/services/gpu-admission")
    want = 'service "gpu-admission" not found'
    assert want in refusal(plane, want)
