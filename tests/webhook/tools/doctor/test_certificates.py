"""The certificate as doctor sees it: really served on loopback, or, where nothing is, as the Secret has it."""

import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from certs.issue import KeyPair, issue_authority, issue_server
from tests.webhook.tools.doctor.clusters import cluster_of
from webhook.tools.doctor.check import Result, result_of
from webhook.tools.doctor.checks import certificates
from webhook.tools.doctor.cluster import ADMISSION

NAME = "gpu-admission.gpu-admission.svc"
SERVICE = "/api/v1/namespaces/gpu-admission/services/gpu-admission"
SECRET = "/api/v1/namespaces/gpu-admission/secrets/gpu-admission-certificates"
MUTATING = f"{ADMISSION}/mutatingwebhookconfigurations/zz-gpu-admission"
NOW = datetime.now(UTC)
YEAR = timedelta(days=365)
BUNDLE, SERVED = certificates.CHECKS
OTHER = issue_authority(common_name="another", now=NOW, lifetime=YEAR)


def authority(*, begun: timedelta = timedelta(0), lifetime: timedelta = 10 * YEAR) -> KeyPair:
    return issue_authority(common_name="ours", now=NOW - begun, lifetime=lifetime)


def server(
    issuer: KeyPair, *, name: str = NAME, begun: timedelta = timedelta(0), lifetime: timedelta = YEAR
) -> KeyPair:
    return issue_server(issuer, names=[name], now=NOW - begun, lifetime=lifetime)


def entry(bundle: bytes | None) -> dict[str, Any]:
    encoded = {} if bundle is None else {"caBundle": base64.b64encode(bundle).decode()}
    return {"webhooks": [{"name": "pods.mutate.gpu-admission.dev", "clientConfig": encoded}]}


@contextmanager
def serving(pair: KeyPair, folder: Path) -> Iterator[int]:
    """Serve TLS with the pair, and nothing behind it; give the port."""
    (folder / "pair.pem").write_bytes(pair.certificate_pem() + pair.key_pem())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "pair.pem")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def checked(folder: Path, port: int, bundle: bytes, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Result:
    monkeypatch.setattr(certificates, "PORT", port)
    objects = {MUTATING: entry(bundle), SERVICE: {"spec": {"clusterIP": "127.0.0.1"}}, **more}
    with cluster_of(folder, objects, now=NOW) as cluster:
        return result_of(SERVED, cluster)


OURS = authority()
OLD = authority(begun=YEAR, lifetime=YEAR + timedelta(days=30))
LATE = timedelta(days=330)


@pytest.mark.parametrize(
    ("pair", "bundle", "want", "told"),
    [
        pytest.param(server(OURS), OURS, [], "", id="as-it-should-be"),
        pytest.param(
            server(OURS),
            OTHER,
            ["ca-bundle-does-not-verify"],
            "does not vouch for the certificate that is served",
            id="another-authority",
        ),
        pytest.param(
            server(OURS, name="gpu-admission.default.svc"),
            OURS,
            ["certificate-name"],
            f"does not carry the name {NAME}",
            id="another-name",
        ),
        pytest.param(
            server(OURS, begun=YEAR, lifetime=timedelta(days=300)),
            OURS,
            ["certificate-expired"],
            "has expired: every call fails",
            id="expired",
        ),
        pytest.param(
            server(OURS, begun=LATE), OURS, ["certificate-expires-soon"], "was not renewed", id="soon-expired"
        ),
        pytest.param(
            server(OLD, lifetime=timedelta(days=20)),
            OLD,
            ["authority-expires-soon"],
            "the authority in its caBundle ends on",
            id="an-authority-that-ends-soon",
        ),
    ],
)
def test_what_is_served(
    pair: KeyPair,
    bundle: KeyPair,
    want: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(pair, tmp_path) as port:
        result = checked(tmp_path, port, bundle.certificate_pem(), monkeypatch)

    assert [finding.id for finding in result.findings] == want
    assert all(told in finding.message for finding in result.findings)
    assert (result.not_checked, result.notes) == ((), ())


def test_a_bundle_of_two_authorities_vouches_while_one_replaces_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = OTHER.certificate_pem() + OURS.certificate_pem()
    with serving(server(OURS), tmp_path) as port:
        assert checked(tmp_path, port, both, monkeypatch).findings == ()


def secret(pair: KeyPair) -> dict[str, Any]:
    data = {"tls.crt": pair.certificate_pem(), "tls.key": pair.key_pem()}
    return {"data": {key: base64.b64encode(value).decode() for key, value in data.items()}}


@pytest.mark.parametrize(
    ("pair", "bundle", "want"),
    [
        pytest.param(server(OURS), OURS, [], id="as-it-should-be"),
        pytest.param(server(OURS), OTHER, ["certificate-unusable"], id="another-authority"),
        pytest.param(server(OURS, name="other.svc"), OURS, ["certificate-name"], id="another-name"),
        pytest.param(server(OURS, begun=LATE), OURS, ["certificate-expires-soon"], id="soon-expired"),
        pytest.param(
            server(OURS, begun=YEAR, lifetime=timedelta(days=300)),
            OURS,
            ["certificate-unusable"],
            id="expired",
        ),
    ],
)
def test_out_of_reach_the_secret_stands_in_and_that_is_said(
    pair: KeyPair, bundle: KeyPair, want: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {SECRET: secret(pair)}
    result = checked(tmp_path, 1, bundle.certificate_pem(), monkeypatch, **more)

    assert [finding.id for finding in result.findings] == want
    assert [note.text for note in result.notes] == [
        "the certificate is that of Secret gpu-admission/gpu-admission-certificates: "
        "127.0.0.1:1 is not reached from here"
    ]


def test_without_either_nothing_is_called_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = checked(tmp_path, 1, OURS.certificate_pem(), monkeypatch)

    assert [each.why for each in result.not_checked] == [
        "127.0.0.1:1 is not reached from here, and there is no Secret gpu-admission/gpu-admission-certificates"
    ]


@pytest.mark.parametrize(
    ("bundle", "want"),
    [
        pytest.param(None, "ca-bundle-missing", id="none"),
        pytest.param(b"", "ca-bundle-missing", id="an-empty-one"),
        pytest.param(b"no certificate", "ca-bundle-unreadable", id="something-else"),
    ],
)
def test_a_bundle_that_is_none(tmp_path: Path, bundle: bytes | None, want: str) -> None:
    with cluster_of(tmp_path, {MUTATING: entry(bundle)}) as cluster:
        findings = result_of(BUNDLE, cluster).findings
        served = result_of(SERVED, cluster)

    assert [(finding.id, finding.object) for finding in findings] == [
        (want, "MutatingWebhookConfiguration/zz-gpu-admission webhooks[pods.mutate.gpu-admission.dev]")
    ]
    assert [each.why for each in served.not_checked] == ["no entry has a caBundle to check with"]
