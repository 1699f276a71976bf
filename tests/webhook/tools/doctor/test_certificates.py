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

from certs.issue import KeyPair, issue_ca, issue_server
from tests.cases import cases
from tests.webhook.tools.doctor.objects import ENTRY
from tests.webhook.tools.installed_clusters import cluster_of
from webhook.tools.doctor.check import CheckResult, NotChecked, run_check
from webhook.tools.doctor.checks import certificates, configurations
from webhook.tools.installed_cluster import ADMISSION, InstalledCluster

NAME = "gpu-admission.gpu-admission.svc"
SERVICE = "/api/v1/namespaces/gpu-admission/services/gpu-admission"
SECRET = "/api/v1/namespaces/gpu-admission/secrets/gpu-admission-certificates"
AUTHORITY = "/api/v1/namespaces/gpu-admission/secrets/gpu-admission-ca"
MUTATING = f"{ADMISSION}/mutatingwebhookconfigurations/zz-gpu-admission"
NOW = datetime.now(UTC).replace(second=0)  # as messages have it
YEAR = timedelta(days=365)
BUNDLE, SERVED, KEPT, _ = certificates.CHECKS
OTHER = issue_ca(common_name="another", now=NOW, lifetime=YEAR)


def authority(*, begun: timedelta = timedelta(0), lifetime: timedelta = 10 * YEAR) -> KeyPair:
    return issue_ca(common_name="ours", now=NOW - begun, lifetime=lifetime)


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
    thread.join(30)


@contextmanager
def cluster(folder: Path, port: int, bundle: bytes, **more: Any) -> Iterator[InstalledCluster]:
    """Give a cluster whose API server calls 127.0.0.1 at that port, and trusts the bundle."""
    service = {"namespace": "gpu-admission", "name": "gpu-admission", "port": port}
    configuration = entry(bundle)
    configuration["webhooks"][0]["clientConfig"]["service"] = service
    objects = {MUTATING: configuration, SERVICE: {"spec": {"clusterIP": "127.0.0.1"}}, **more}
    with cluster_of(folder, objects, now=NOW) as found:
        yield found


def checked(folder: Path, port: int, bundle: bytes, **more: Any) -> CheckResult:
    with cluster(folder, port, bundle, **more) as found:
        return run_check(SERVED, found)


OURS = authority()
OLD = authority(begun=YEAR, lifetime=YEAR + timedelta(days=30))
LATE = timedelta(days=330)
EXPIRED = server(OURS, begun=YEAR, lifetime=timedelta(days=300))

WRONG_BUNDLE = (
    "ca-bundle-does-not-verify: caBundle does not verify the served certificate "
    "(unable to get local issuer certificate)"
)
WRONG_NAME = (
    f"certificate-name: the served certificate must carry the name {NAME}, by which the API server calls"
)
ENDED = "certificate-expired: the served certificate, or its authority, has expired: every call fails"
OLD_ENDS = "authority-expires-soon: the authority in its caBundle ends on END UTC and was not renewed"
SOON = "certificate-expires-soon: the certificate ends on END UTC and was not renewed"
ROTATE = "see the controller's log for why it was not renewed; then gpu-admission certs rotate"
REPAIR = (
    "a controller with --certificate-secret repairs it within seconds; if none does, see "
    "kubectl -n gpu-admission logs deployment/gpu-admission-controller"
)
ISSUE = f"issue it for {NAME}: --certificate-name {NAME} of the controller, or the dnsNames of cert-manager"
REMEDIES = {
    "ca-bundle-does-not-verify": REPAIR,
    "certificate-name": ISSUE,
    "certificate-expired": ROTATE,
    "certificate-expires-soon": ROTATE,
    "authority-expires-soon": ROTATE,
}


@cases(
    ("pair", "bundle", "want"),
    as_it_should_be=(server(OURS), [OURS], ""),
    two_authorities_while_one_replaces_the_other=(server(OURS), [OTHER, OURS], ""),
    another_authority=(server(OURS), [OTHER], WRONG_BUNDLE),
    another_name=(server(OURS, name="gpu-admission.default.svc"), [OURS], WRONG_NAME),
    expired=(EXPIRED, [OURS], ENDED),
    soon_expired=(server(OURS, begun=LATE), [OURS], SOON),
    an_authority_that_ends_soon=(server(OLD, lifetime=timedelta(days=20)), [OLD], OLD_ENDS),
)
def test_what_is_served(pair: KeyPair, bundle: list[KeyPair], want: str, tmp_path: Path) -> None:
    with serving(pair, tmp_path) as port:
        result = checked(tmp_path, port, b"".join(each.certificate_pem() for each in bundle))

    assert len(result.findings) == bool(want)
    ends = (OLD if want == OLD_ENDS else pair).certificate.not_valid_after_utc
    for finding in result.findings:
        assert f"{finding.id}: {finding.message}" == want.replace("END", f"{ends:%Y-%m-%d %H:%M}")
        assert finding.remedy == REMEDIES[finding.id]
        assert finding.object == (f"certificate served at 127.0.0.1:{port}" if want == SOON else ENTRY)
    assert (result.not_checked, result.notes) == ((), ())


STORED = "Secret/gpu-admission-certificates in gpu-admission"


def secret(pair: KeyPair) -> dict[str, Any]:
    return encoded({"tls.crt": pair.certificate_pem(), "tls.key": pair.key_pem()})


def encoded(data: dict[str, bytes]) -> dict[str, Any]:
    return {"metadata": {}, "data": {key: base64.b64encode(value).decode() for key, value in data.items()}}


@cases(
    ("pair", "bundle", "want"),
    as_it_should_be=(server(OURS), OURS, []),
    another_authority=(
        server(OURS),
        OTHER,
        [
            f"certificate-unusable: {STORED} cannot be served: certificate: must be issued by the authority\n{REPAIR}"
        ],
    ),
    another_name=(
        server(OURS, name="other.svc"),
        OURS,
        [
            f"certificate-name: {STORED} its certificate must carry the name {NAME}, by which the API server calls\n{ISSUE}"
        ],
    ),
    soon_expired=(
        server(OURS, begun=LATE),
        OURS,
        [f"certificate-expires-soon: {STORED} the certificate ends on END UTC and was not renewed\n{ROTATE}"],
    ),
    expired=(
        EXPIRED,
        OURS,
        [f"certificate-unusable: {STORED} cannot be served: certificate: expired at END UTC\n{REPAIR}"],
    ),
)
def test_out_of_reach_the_secret_stands_in_and_that_is_said(
    pair: KeyPair, bundle: KeyPair, want: list[str], tmp_path: Path
) -> None:
    with cluster(tmp_path, 1, bundle.certificate_pem(), **{SECRET: secret(pair)}) as found:
        served, kept = run_check(SERVED, found), run_check(KEPT, found)

    end = f"{pair.certificate.not_valid_after_utc:%Y-%m-%d %H:%M}"
    assert [
        f"{each.id}: {each.object} {each.message}\n{each.remedy}"
        for each in (*served.findings, *kept.findings)
    ] == [text.replace("END", end) for text in want]
    assert (served.not_checked, kept.not_checked) == ((), ())
    assert list(served.notes) == [
        "the certificate is that of Secret/gpu-admission-certificates in gpu-admission: "
        "127.0.0.1:1 is not reachable from here"
    ]


def test_without_either_nothing_is_called_fine(tmp_path: Path) -> None:
    result = checked(tmp_path, 1, OURS.certificate_pem())

    assert [each.why for each in result.not_checked] == [
        "127.0.0.1:1 is not reachable from here, and Secret/gpu-admission-certificates in gpu-admission does not exist"
    ]


def test_a_service_without_an_address(tmp_path: Path) -> None:
    result = checked(tmp_path, 1, OURS.certificate_pem(), **{SERVICE: {"spec": {"clusterIP": "None"}}})

    assert [each.why for each in result.not_checked] == [
        f"{NAME} has no address, and Secret/gpu-admission-certificates in gpu-admission does not exist"
    ]


def test_a_server_that_is_away_before_the_second_handshake() -> None:
    bundle = certificates.CABundle("", OURS.certificate_pem(), (), certificates.CalledAddress(NAME, port=1))

    assert list(certificates._try_handshake("127.0.0.1", bundle)) == [
        NotChecked("127.0.0.1:1 did not answer a second time: it refused the connection")
    ]


def kept(**data: bytes) -> dict[str, Any]:
    """Return both Secrets as the controller keeps them, with these keys in the Secret that has them."""
    leaf = server(OURS)
    served = {"tls.crt": leaf.certificate_pem(), "tls.key": leaf.key_pem(), "ca.crt": OURS.certificate_pem()}
    given = {name.replace("_", "."): value for name, value in data.items()}
    state = {**served, "ca.key": OURS.key_pem(), **{k: v for k, v in given.items() if k not in served}}
    return {
        SECRET: encoded({**served, **{k: v for k, v in given.items() if k in served}}),
        AUTHORITY: encoded(state),
    }


WRONG_CA = (
    "ca-bundle-differs: caBundle must equal ca.crt of Secret/gpu-admission-certificates in gpu-admission"
)
NO_PEM = "certificate-unusable: cannot be served: certificate: must be a certificate in PEM"
WRONG_KEY = "certificate-unusable: cannot be served: key: must be the key of the certificate"
NO_KEY = "secret-damaged: cannot be used to renew the certificate: ca.key must be the key of an authority in ca.crt"
NO_AUTHORITY = "secret-missing: does not exist: controllers keep the authority in it"


@cases(
    ("stored", "bundle", "want"),
    as_it_should_be=(kept(), OURS, []),
    another_bundle=(kept(), OTHER, [WRONG_CA]),
    no_certificate=(kept(tls_crt=b"damaged"), OURS, [NO_PEM]),
    another_key=(kept(tls_key=OTHER.key_pem()), OURS, [WRONG_KEY]),
    an_authority_without_its_key=(kept(ca_key=b""), OURS, [NO_KEY]),
    no_secret_of_the_authority=({SECRET: kept()[SECRET]}, OURS, [NO_AUTHORITY]),
)
def test_what_the_secrets_hold(
    stored: dict[str, Any], bundle: KeyPair, want: list[str], tmp_path: Path
) -> None:
    with cluster(tmp_path, 1, bundle.certificate_pem(), **stored) as found:
        result = run_check(KEPT, found)

    assert len(result.findings) == len(want)
    for finding, words in zip(result.findings, want, strict=True):
        assert f"{finding.id}: {finding.message}" == words
        assert finding.remedy == REPAIR


def test_cert_manager_keeps_no_key_of_its_authority_in_the_secret(tmp_path: Path) -> None:
    with cluster(tmp_path, 1, OURS.certificate_pem(), **{SECRET: kept()[SECRET]}) as found:
        annotations = {"cert-manager.io/inject-ca-from": "gpu-admission/gpu-admission"}
        found.get(MUTATING)["metadata"] = {"annotations": annotations}
        assert run_check(KEPT, found).findings == ()


def test_a_configuration_that_is_missing_is_found_once(tmp_path: Path) -> None:
    with cluster(tmp_path, 1, OURS.certificate_pem()) as found:
        (missing,) = run_check(configurations.CHECKS[0], found).findings
        bundle = run_check(BUNDLE, found)

    assert (missing.id, missing.object) == (
        "configuration-missing",
        "ValidatingWebhookConfiguration/zz-gpu-admission",
    )
    assert missing.message == "does not exist: the API server never calls the webhook"
    assert missing.remedy == (
        "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict"
    )
    assert (bundle.findings, bundle.not_checked) == ((), ())


NO_SECRET = "Secret/gpu-admission-certificates in gpu-admission does not exist"
CERT_MANAGER = {"cert-manager.io/inject-ca-from": "gpu-admission/gpu-admission"}
CONTROLLERS = issue_ca(common_name="gpu-admission 2027-01-31T12:00:00Z", now=NOW, lifetime=YEAR)
IN_FILES = issue_ca(common_name="gpu-admission", now=NOW, lifetime=YEAR)


@cases(
    ("bundle", "annotations", "want", "not_checked"),
    nothing_was_issued_yet=(None, {}, ["secret-missing"], []),
    the_bundle_is_the_controllers=(CONTROLLERS, {}, ["secret-missing"], []),
    files_take_its_place=(IN_FILES, {}, [], []),
    cert_manager_has_issued_nothing_yet=(None, CERT_MANAGER, [], [NO_SECRET]),
)
def test_a_secret_that_is_missing_is_found_where_the_certificate_is_the_controllers(
    bundle: KeyPair | None,
    annotations: dict[str, str],
    want: list[str],
    not_checked: list[str],
    tmp_path: Path,
) -> None:
    configuration = entry(bundle.certificate_pem() if bundle else None)
    configuration["metadata"] = {"annotations": annotations}
    with cluster_of(tmp_path, {MUTATING: configuration}, now=NOW) as found:
        kept, served = run_check(KEPT, found), run_check(SERVED, found)

    assert [finding.id for finding in kept.findings] == want
    assert [each.why for each in kept.not_checked] == not_checked
    for finding in kept.findings:
        assert (
            f"{finding.object} {finding.message}" == f"{NO_SECRET}: the webhook reads its certificate from it"
        )
        assert finding.remedy == REPAIR
        assert NO_SECRET not in "".join(each.why for each in served.not_checked)


NO_BUNDLE = (
    "ca-bundle-missing: must have a caBundle: without one the API server trusts no certificate of ours"
)


@cases(
    ("bundle", "want"),
    none=(None, NO_BUNDLE),
    an_empty_one=(b"", NO_BUNDLE),
    something_else=(b"no certificate", "ca-bundle-unreadable: caBundle must be certificates in PEM"),
)
def test_a_bundle_that_is_none(tmp_path: Path, bundle: bytes | None, want: str) -> None:
    with cluster_of(tmp_path, {MUTATING: entry(bundle)}) as cluster:
        findings = run_check(BUNDLE, cluster).findings
        served = run_check(SERVED, cluster)

    assert [(f"{each.id}: {each.message}", each.remedy, each.object) for each in findings] == [
        (
            want,
            REPAIR,
            "MutatingWebhookConfiguration/zz-gpu-admission webhooks[pods.mutate.gpu-admission.dev]",
        )
    ]
    assert [each.why for each in served.not_checked] == ["no webhook has a caBundle to check with"]
