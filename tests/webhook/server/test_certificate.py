"""The certificate that connections are given, while its files change."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from certs.issue import KeyPair
from tests.cases import cases
from tests.webhook.server.harness import Server, new_pair, replace, serving
from webhook.server.settings import StartupError
from webhook.server.tls import CertificateState, ServingCertificate


def served_serial(server: Server) -> int:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(server.plain_socket()) as spoken:
        return x509.load_der_x509_certificate(spoken.getpeercert(binary_form=True) or b"").serial_number


def write(directory: Path, pair: KeyPair) -> None:
    replace(directory / "tls.key", pair.key_pem())
    replace(directory / "tls.crt", pair.certificate_pem())


def kubelet_publish(volume: Path, generation: str, pair: KeyPair) -> None:
    """Write as kubelet's AtomicWriter does: a new directory, then one rename of the `..data` link."""
    (volume / generation).mkdir()
    write(volume / generation, pair)
    (volume / "..data_tmp").symlink_to(generation)
    (volume / "..data_tmp").rename(volume / "..data")
    for name in ("tls.crt", "tls.key"):
        if not (volume / name).is_symlink():
            (volume / name).symlink_to(f"..data/{name}")


def test_new_certificate_is_served_to_the_next_connection(directory: Path) -> None:
    with serving(directory) as server, server.client() as before:
        first = served_serial(server)
        _, pair = new_pair()
        write(directory, pair)
        assert served_serial(server) == pair.certificate.serial_number != first
        assert before.post("/body").status == 200, "the connection from before lives on"


def test_certificate_behind_swapped_links_is_served(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    _, old = new_pair()
    _, new = new_pair()
    kubelet_publish(volume, "..2026_01", old)
    serving_certificate = ServingCertificate(volume / "tls.crt", volume / "tls.key")
    first = serving_certificate.context()
    assert serving_certificate.context() is first
    kubelet_publish(volume, "..2026_02", new)
    assert serving_certificate.context() is not first
    assert serving_certificate.state.not_after == new.certificate.not_valid_after_utc
    assert serving_certificate.state.last_error is None


def test_broken_pair_ends_no_service(directory: Path) -> None:
    with serving(directory) as server:
        first = served_serial(server)
        replace(directory / "tls.crt", b"not a certificate")
        assert [served_serial(server) for _ in range(3)] == [first] * 3


ENCRYPTED = new_pair()[1].key.private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
)
NO_PAIR = "DIR/tls.crt and DIR/tls.key do not load as a pair"


@cases(
    ("file", "content", "want"),
    not_a_certificate=("tls.crt", b"not a certificate", f"{NO_PAIR}: pem lib"),
    not_a_key=("tls.key", b"not a key", f"{NO_PAIR}: pem lib"),
    key_of_another=("tls.key", new_pair()[1].key_pem(), f"{NO_PAIR}: key values mismatch"),
    key_gone=("tls.key", None, "DIR/tls.key: No such file or directory"),
    key_that_is_encrypted=(
        "tls.key",
        ENCRYPTED,
        "DIR/tls.key: the key is encrypted; serve needs a plain one",
    ),
)
def test_broken_pair_keeps_the_one_before(
    directory: Path, caplog: pytest.LogCaptureFixture, file: str, content: bytes | None, want: str
) -> None:
    caplog.set_level("INFO")
    want = want.replace("DIR", str(directory))
    paths = directory / "tls.crt", directory / "tls.key"
    certificate = ServingCertificate(*paths)
    context, not_after = certificate.context(), certificate.state.not_after

    replace(directory / file, content)
    assert [certificate.context() for _ in range(3)] == [context] * 3
    assert certificate.state == CertificateState(not_after, want)
    with pytest.raises(StartupError) as error:
        ServingCertificate(*paths)
    assert str(error.value) == want, "at the start there is none before"

    _, pair = new_pair()
    write(directory, pair)
    assert certificate.context() is not context
    assert caplog.messages == [
        f"keeping the certificate valid until {not_after}: {want}",
        f"serving a new certificate from {paths[0]}, valid until {pair.certificate.not_valid_after_utc}",
    ]


def test_a_certificate_that_openssl_reads_and_we_do_not(tmp_path: Path) -> None:
    """It ends in the 25th hour of a day."""
    _, pair = new_pair()
    der = pair.certificate.public_bytes(Encoding.DER)
    end = f"{pair.certificate.not_valid_after_utc:%y%m%d%H%M%S}Z".encode()
    assert end in der
    (tmp_path / "tls.key").write_bytes(pair.key_pem())
    (tmp_path / "tls.crt").write_text(ssl.DER_cert_to_PEM_cert(der.replace(end, end[:6] + b"24" + end[8:])))
    with pytest.raises(StartupError) as error:
        ServingCertificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    assert str(error.value) == f"{tmp_path}/tls.crt must begin with a certificate that can be read"
