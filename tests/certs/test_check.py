import datetime as dt
from base64 import encodebytes
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.check import expires_at, is_due, problems
from certs.issue import BACKDATED, KeyPair, issue_ca, issue_server
from tests.cases import cases

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
AUTHORITY = issue_ca(common_name="ours", now=NOW, lifetime=100 * DAY)
SAME_NAME = issue_ca(common_name="ours", now=NOW, lifetime=100 * DAY)
SHORT = issue_ca(common_name="short", now=NOW, lifetime=2 * DAY)
SERVER = issue_server(AUTHORITY, names=["hook.ns.svc", "127.0.0.1"], now=NOW, lifetime=30 * DAY)
OF_SHORT = issue_server(SHORT, names=["hook.ns.svc"], now=NOW, lifetime=30 * DAY)
ENCRYPTED = SERVER.key.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.BestAvailableEncryption(b"secret"),
)
CLIENT = (
    x509.CertificateBuilder()
    .subject_name(SERVER.certificate.subject)
    .issuer_name(AUTHORITY.certificate.subject)
    .public_key(SERVER.key.public_key())
    .serial_number(1)
    .not_valid_before(NOW)
    .not_valid_after(NOW + DAY)
    .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    .sign(AUTHORITY.key, hashes.SHA256())
    .public_bytes(serialization.Encoding.PEM)
)
# The OID of keyUsage, 2.5.29.15, becomes that of subjectAltName, 2.5.29.17: two extensions of one kind, and no valid signature.
_DER = SERVER.certificate.public_bytes(serialization.Encoding.DER)
TWICE = x509.load_der_x509_certificate(_DER.replace(b"\x55\x1d\x0f", b"\x55\x1d\x11", 1)).public_bytes(
    serialization.Encoding.PEM
)


# The last bit of the point is another one: it is not on the curve, and the certificate can be read all the same.
def _without_point(pair: KeyPair) -> bytes:
    point = pair.key.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    der = pair.certificate.public_bytes(serialization.Encoding.DER)
    broken = der.replace(point, point[:-1] + bytes([point[-1] ^ 1]))
    return x509.load_der_x509_certificate(broken).public_bytes(serialization.Encoding.PEM)


NO_POINT, NO_POINT_AUTHORITY = _without_point(SERVER), _without_point(AUTHORITY)
# The OID of a public key of elliptic curves, 1.2.840.10045.2.1, becomes one that nobody knows.
_KEY = SERVER.key.private_bytes(
    serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
UNKNOWN_KEY = b"-----BEGIN PRIVATE KEY-----\n%s-----END PRIVATE KEY-----\n" % encodebytes(
    _KEY.replace(bytes.fromhex("2a8648ce3d0201"), bytes.fromhex("2a8648ce3d6201"))
)


def found(**given: Any) -> list[str]:
    good: dict[str, Any] = {
        "certificate": SERVER.certificate_pem(),
        "key": SERVER.key_pem(),
        "authority": AUTHORITY.certificate_pem(),
        "names": ["hook.ns.svc"],
        "now": NOW,
    }
    return problems(**good | given)


def of(pair: KeyPair) -> dict[str, bytes]:
    return {"certificate": pair.certificate_pem(), "key": pair.key_pem()}


OURS, CHAIN = AUTHORITY.certificate_pem(), SERVER.certificate_pem() + AUTHORITY.certificate_pem()
NOT_ISSUED = ["certificate: must be issued by the authority"]


@cases(
    ("given", "want"),
    good=({}, []),
    address_and_name=({"names": ["127.0.0.1", "hook.ns.svc"]}, []),
    two_authorities=({"authority": SAME_NAME.certificate_pem() + OURS}, []),
    with_its_chain=({"certificate": CHAIN}, []),
    name_and_address_missing=(
        {"names": ["other.ns.svc", "hook.ns.svc", "127.0.0.2"]},
        [f"certificate: does not carry the name {name}" for name in ("other.ns.svc", "127.0.0.2")],
    ),
    just_expired=({"now": NOW + 30 * DAY}, ["certificate: expired at 2026-03-31 12:00 UTC"]),
    before_its_time=(
        {"now": NOW - DAY},
        [f"{what}: is not valid before 2026-03-01 11:00 UTC" for what in ("certificate", "authority")],
    ),
    of_another_authority_with_the_same_name=({"authority": SAME_NAME.certificate_pem()}, NOT_ISSUED),
    authority_is_none=({"authority": SERVER.certificate_pem()}, NOT_ISSUED),
    both_expired=(
        {**of(OF_SHORT), "authority": SHORT.certificate_pem(), "now": NOW + 3 * DAY},
        [f"{what}: expired at 2026-03-03 12:00 UTC" for what in ("certificate", "authority")],
    ),
    key_of_another=({"key": AUTHORITY.key_pem()}, ["key: must be the key of the certificate"]),
    encrypted_key=({"key": ENCRYPTED}, ["key: must be an unencrypted private key in PEM"]),
    key_of_an_unknown_kind=({"key": UNKNOWN_KEY}, ["key: must be an unencrypted private key in PEM"]),
    certificate_whose_key_cannot_be_used=(
        {"certificate": NO_POINT},
        ["key: must be the key of the certificate", *NOT_ISSUED],
    ),
    authority_whose_key_cannot_be_used=({"authority": NO_POINT_AUTHORITY}, NOT_ISSUED),
    certificate_for_clients=(
        {"certificate": CLIENT},
        [
            "certificate: does not carry the name hook.ns.svc",
            "certificate: extendedKeyUsage must include serverAuth",
        ],
    ),
    an_extension_that_comes_twice=(
        {"certificate": TWICE},
        ["certificate: does not carry the name hook.ns.svc", *NOT_ISSUED],
    ),
    nothing_is_what_it_should_be=(
        {"certificate": b"", "key": b"nonsense", "authority": b"\xff"},
        [
            "authority: must be a certificate in PEM",
            "certificate: must be a certificate in PEM",
            "key: must be an unencrypted private key in PEM",
        ],
    ),
)
def test_every_problem_is_a_sentence(given: dict[str, Any], want: list[str]) -> None:
    assert found(**given) == want


def test_expiry_is_read() -> None:
    assert expires_at(SERVER.certificate_pem()) == NOW + 30 * DAY


@cases(
    ("share", "want"),
    just_before_two_thirds=(0.66, False),
    just_after_two_thirds=(0.67, True),
)
def test_renewal_is_due_after_two_thirds(share: float, want: bool) -> None:
    begin = NOW - BACKDATED
    assert is_due(SERVER.certificate, begin + share * (30 * DAY + BACKDATED)) is want
