"""What a server takes from the Secret, what it refuses, and when it is ready; a clock and a cluster in memory."""

import datetime as dt
import stat
import threading
from pathlib import Path
from typing import cast

import pytest
from cryptography import x509

from certs.check import issued_by, observe
from certs.issue import issue_ca, issue_server
from certs.reconciler import StoredSecret, WebhookConfiguration
from certs.rotation import RotationSettings, new_state
from certs.secret import CERTIFICATE, SecretContent, encode
from tests.webhook.cluster.apiserver import ApiServer, status
from webhook.certificates.objects import ChangeSignal, SecretName
from webhook.certificates.serving import PrivateFile, SecretCertificate
from webhook.cluster.objects import WEBHOOK_CONFIGURATION_KINDS as KINDS
from webhook.server.tls import ServingCertificate

SECOND, DAY = dt.timedelta(seconds=1), dt.timedelta(days=1)
BEGIN = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
HOST = "gpu-admission.gpu-admission.svc"
TERMS = RotationSettings(names=(HOST,))
OURS = new_state(TERMS, BEGIN)
OTHERS = new_state(TERMS, BEGIN)
NAME = SecretName("gpu-admission", "gpu-admission-certificates")


class PublishedCertificate:
    """What `ClusterSecret` and `ClusterConfigurations` read."""

    def __init__(self) -> None:
        self.now = BEGIN
        self.content: SecretContent | None = None
        self.bundles: dict[str, bytes] = {}
        self.server = SecretCertificate(NAME, clock=lambda: self.now)

    def read(self) -> StoredSecret | None:
        return StoredSecret("1", self.content) if self.content else None

    def seen(self) -> list[WebhookConfiguration]:
        return [
            WebhookConfiguration(kind, "1", (bundle, bundle), (HOST,))
            for kind, bundle in self.bundles.items()
        ]

    def publish(self, bundle: bytes) -> None:
        self.bundles = dict.fromkeys(KINDS, bundle)

    def refresh(self, after: dt.timedelta = 0 * SECOND) -> list[str]:
        self.now += after
        self.server.refresh(self.seen(), self.read())
        return self.server.unready_reasons()

    def served(self) -> bytes:
        return self.server.certificate.read_bytes().partition(b"\n-----BEGIN PRIVATE")[0]


@pytest.fixture
def published() -> PublishedCertificate:
    return PublishedCertificate()


@pytest.fixture
def ready(published: PublishedCertificate) -> PublishedCertificate:
    published.content = encode(OURS)
    published.publish(OURS.bundle())
    assert published.refresh() == []
    return published


def test_readiness_names_what_the_server_waits_for(published: PublishedCertificate) -> None:
    assert published.refresh() == [f"waiting for the Secret {NAME}"]
    assert published.server.state is None
    ServingCertificate(
        published.server.certificate, published.server.key
    )  # something to answer liveness probes with

    published.content = encode(OURS)
    assert published.refresh() == [f"there is no {kind} zz-gpu-admission" for kind in KINDS]
    assert OURS.leaf is not None
    assert published.served() == OURS.leaf.certificate_pem()

    published.publish(b"")
    assert published.refresh() == [
        f"the caBundle of the {kind} zz-gpu-admission does not verify the certificate" for kind in KINDS
    ]
    published.bundles["MutatingWebhookConfiguration"] = OURS.bundle()
    assert published.refresh() == [
        "the caBundle of the ValidatingWebhookConfiguration zz-gpu-admission does not verify the certificate"
    ]
    published.publish(OURS.bundle())
    assert published.refresh() == []


def test_a_broken_pair_does_not_replace_the_present_one(
    ready: PublishedCertificate, caplog: pytest.LogCaptureFixture
) -> None:
    before = ready.served()
    ready.content = SecretContent({**encode(OURS).data, CERTIFICATE: b"nothing"}, {})
    assert ready.refresh() == []
    assert ready.served() == before
    state = ready.server.state
    assert state is not None
    problem = f"the Secret {NAME}: certificate: must be a certificate in PEM"
    assert state.last_error == problem
    ready.refresh()
    assert caplog.messages.count(f"keeping the previous certificate: {problem}") == 1
    ready.content = encode(OURS)
    ready.refresh()
    assert ready.server.state is not None
    assert ready.server.state.last_error is None


def test_a_leaf_of_an_authority_that_is_not_published_waits(ready: PublishedCertificate) -> None:
    assert OTHERS.leaf is not None
    before = ready.served()
    ready.content = encode(OTHERS)
    ready.refresh(3600 * SECOND)
    assert ready.served() == before
    ready.publish(OURS.bundle() + OTHERS.bundle())
    ready.refresh()
    assert ready.served() == before, "API servers may not have heard yet"
    ready.refresh(6 * SECOND)
    assert ready.served() == OTHERS.leaf.certificate_pem()
    assert ready.server.unready_reasons() == []
    assert ready.server.ca_not_after == OTHERS.authority.certificate.not_valid_after_utc.timestamp()


def test_a_bundle_without_our_authority_makes_the_server_unready_after_30_s(
    ready: PublishedCertificate,
) -> None:
    ready.publish(OTHERS.bundle())
    assert ready.refresh() == []
    assert ready.refresh(29 * SECOND) == []
    assert len(ready.refresh(2 * SECOND)) == len(KINDS)
    ready.publish(OURS.bundle())
    assert ready.refresh() == []


@pytest.mark.parametrize("gone", ["secret", "configurations"])
def test_a_deleted_object_does_not_make_the_server_unready(ready: PublishedCertificate, gone: str) -> None:
    before = ready.served()
    if gone == "secret":
        ready.content = None
    else:
        ready.bundles = {}
    assert ready.refresh(3600 * SECOND) == []
    assert ready.served() == before


def test_only_expiry_makes_a_silent_server_unready(ready: PublishedCertificate) -> None:
    ready.now += 89 * DAY
    assert ready.server.unready_reasons() == [], "nothing was heard from the API server for 89 days"
    ready.now += DAY
    assert ready.server.unready_reasons() == ["the certificate expired at 2026-05-30 12:00 UTC"]


def test_the_file_is_for_its_owner_and_swaps_certificate_and_key_at_once() -> None:
    file = PrivateFile()
    authority = issue_ca(common_name="ours", now=BEGIN, lifetime=DAY)
    pairs = [issue_server(authority, names=[HOST], now=BEGIN, lifetime=DAY) for _ in range(4)]
    for pair in pairs:
        file.write(pair.certificate_pem(), pair.key_pem())
        serving = ServingCertificate(file.path, file.path)
        assert serving.state.not_after == pair.certificate.not_valid_after_utc
    root = file.path.parent
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert list(root.iterdir()) == [file.path]


def test_a_broken_first_certificate_is_logged(
    published: PublishedCertificate, caplog: pytest.LogCaptureFixture
) -> None:
    published.content = SecretContent({**encode(OURS).data, CERTIFICATE: b"nothing"}, {})
    problem = f"the Secret {NAME}: certificate: must be a certificate in PEM"

    assert published.refresh() == [problem]
    assert caplog.messages == [f"no certificate yet: {problem}"]


def test_a_certificate_is_not_ready_before_the_configurations_are_known(
    published: PublishedCertificate,
) -> None:
    nothing = observe(None, frozenset(), (), BEGIN)

    assert published.server._use_secret(encode(OURS).data, nothing, BEGIN) == ""
    assert published.server.unready_reasons() == ["the webhook configurations were not read yet"]


def test_a_secret_that_cannot_be_read_is_logged(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    class Once:
        def wait(self, _seconds: float) -> None:
            raise KeyboardInterrupt

    server = SecretCertificate(NAME)
    with ApiServer(tmp_path, lambda _: status(500, "away")) as api, pytest.raises(KeyboardInterrupt):
        server._run(api.client(), cast(ChangeSignal, Once()), threading.Event())

    assert server.unready_reasons() == ["the certificate cannot be read: away"]
    assert caplog.messages[-1] == "the certificate cannot be read: away"


def test_no_api_server_accepts_the_throw_away_certificate(published: PublishedCertificate) -> None:
    authority = x509.load_pem_x509_certificate(published.served())
    assert authority.issuer.rfc4514_string() == "CN=gpu-admission\\, waiting for its Secret"
    assert authority.not_valid_after_utc <= BEGIN + DAY
    assert not issued_by(published.served(), OURS.bundle(), BEGIN)
