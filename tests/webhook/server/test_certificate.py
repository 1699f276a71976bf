"""The certificate that connections are given, while its files change."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from certs.issue import KeyPair
from tests.cases import cases
from tests.webhook.server.harness import Server, new_pair, replace, serving
from webhook.server.settings import StartupError
from webhook.server.tls import ServingCertificate


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


KEY_OF_ANOTHER = ("tls.key", new_pair()[1].key_pem(), "do not load as a pair: key values mismatch")
NO_KEY = ("tls.key", None, "tls.key: No such file or directory")


@cases(
    ("file", "content", "want"),
    not_a_certificate=("tls.crt", b"not a certificate", "do not load as a pair"),
    not_a_key=("tls.key", b"not a key", "do not load as a pair"),
    key_of_another=KEY_OF_ANOTHER,
    key_gone=NO_KEY,
)
def test_broken_pair_keeps_the_one_before(
    directory: Path, file: str, content: bytes | None, want: str
) -> None:
    with serving(directory) as server:
        first = served_serial(server)
        replace(directory / file, content)
        for _ in range(3):
            assert served_serial(server) == first
        with server.client() as client:
            state = client.post("/state").json()
        assert want in state["last_error"]
        server.wait_for("keeping the certificate valid until")
        assert len([line for line in server.lines if "keeping the certificate valid until" in line]) == 1

        _, pair = new_pair()
        write(directory, pair)
        assert served_serial(server) == pair.certificate.serial_number


def test_a_certificate_that_openssl_reads_and_we_do_not(tmp_path: Path) -> None:
    """It ends in the 25th hour of a day."""
    _, pair = new_pair()
    der = pair.certificate.public_bytes(Encoding.DER)
    end = f"{pair.certificate.not_valid_after_utc:%y%m%d%H%M%S}Z".encode()
    assert end in der
    (tmp_path / "tls.key").write_bytes(pair.key_pem())
    (tmp_path / "tls.crt").write_text(ssl.DER_cert_to_PEM_cert(der.replace(end, end[:6] + b"24" + end[8:])))
    with pytest.raises(StartupError, match=r"tls\.crt must begin with a certificate that can be read$"):
        ServingCertificate(tmp_path / "tls.crt", tmp_path / "tls.key")


@cases(("file", "content", "want"), key_of_another=KEY_OF_ANOTHER, no_key=NO_KEY)
def test_pair_that_never_worked_is_an_error(
    directory: Path, file: str, content: bytes | None, want: str
) -> None:
    replace(directory / file, content)
    with pytest.raises(StartupError, match=want):
        ServingCertificate(directory / "tls.crt", directory / "tls.key")
