import datetime as dt
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store

from certs.issue import BACKDATED, KeyPair, issue_ca, issue_server
from tests.cases import cases

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


@pytest.fixture(scope="module")
def authority() -> KeyPair:
    return issue_ca(common_name="gpu-admission", now=NOW, lifetime=100 * DAY)


def test_server_certificate_verifies_as_a_tls_client_does(authority: KeyPair) -> None:
    server = issue_server(authority, names=["hook.gpu-admission.svc"], now=NOW, lifetime=DAY)
    verifier = (
        PolicyBuilder()
        .store(Store([authority.certificate]))
        .time(NOW)
        .build_server_verifier(x509.DNSName("hook.gpu-admission.svc"))
    )
    assert verifier.verify(server.certificate, []) == [server.certificate, authority.certificate]


def test_names_become_dns_names_and_addresses(authority: KeyPair) -> None:
    names = ["hook.ns.svc", "127.0.0.1", "::1", "hook.ns.svc"]
    server = issue_server(authority, names=names, now=NOW, lifetime=DAY)
    carried = server.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(carried) == [
        x509.DNSName("hook.ns.svc"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]


@cases(
    ("begun", "days", "ends"),
    with_its_lifetime=(NOW, 7, NOW + 7 * DAY),
    with_its_authority_at_the_latest=(NOW + 99 * DAY, 7, NOW + 100 * DAY),
)
def test_validity_begins_before_now_and_ends(
    authority: KeyPair, begun: dt.datetime, days: int, ends: dt.datetime
) -> None:
    server = issue_server(authority, names=["a"], now=begun, lifetime=days * DAY).certificate
    assert (server.not_valid_before_utc, server.not_valid_after_utc) == (begun - BACKDATED, ends)


def test_serials_and_keys_differ_every_time_and_no_key_is_shown(authority: KeyPair) -> None:
    servers = [issue_server(authority, names=["a"], now=NOW, lifetime=DAY) for _ in range(5)]
    assert len({server.certificate.serial_number for server in servers}) == 5
    assert len({server.key_pem() for server in servers}) == 5
    assert isinstance(authority.key.curve, ec.SECP256R1)
    assert "key" not in repr(authority)


def test_authority_signs_servers_only(authority: KeyPair) -> None:
    extensions = authority.certificate.extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value) == (True, x509.BasicConstraints(ca=True, path_length=0))
    assert extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_long_name_leaves_the_common_name_valid(authority: KeyPair) -> None:
    name = "hook." + "n" * 63 + ".svc"
    server = issue_server(authority, names=[name], now=NOW, lifetime=DAY).certificate
    assert server.subject.rfc4514_string() == "CN=webhook"


@cases(
    ("names", "now", "want"),
    no_names=([], NOW, "a server certificate needs at least one name"),
    expired_authority=(["a"], NOW + 100 * DAY, "a certificate needs a lifetime; has the authority expired?"),
)
def test_impossible_certificate_is_refused(
    authority: KeyPair, names: list[str], now: dt.datetime, want: str
) -> None:
    with pytest.raises(ValueError) as refused:
        issue_server(authority, names=names, now=now, lifetime=DAY)

    assert str(refused.value) == want
