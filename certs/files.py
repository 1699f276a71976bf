"""Self-signed certificates in a directory, for a server without a cluster. The authority's key is stored nowhere."""

import datetime as dt
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509

from certs.check import is_due, problems
from certs.issue import issue_ca, issue_server
from certs.secret import CA, CERTIFICATE, KEY

LIFETIME = dt.timedelta(days=3650)

_OWNER_ONLY = 0o600
_EVERYBODY_READS = 0o644


def ensure_self_signed(directory: Path, names: Iterable[str], now: dt.datetime) -> tuple[Path, Path]:
    """Make ca.crt, tls.crt and tls.key in `directory`, or keep valid ones. Return the paths of the last two.

    Each file is replaced atomically. A server that reads between two replacements finds a pair that does not match,
    keeps its own, and reads again at the next connection. Raises OSError.
    """
    names = list(names)
    directory.mkdir(parents=True, exist_ok=True)
    ca, certificate, key = (directory / name for name in (CA, CERTIFICATE, KEY))
    if not _is_usable(ca, certificate, key, names, now):
        authority = issue_ca(common_name="gpu-admission", now=now, lifetime=LIFETIME)
        server = issue_server(authority, names=names, now=now, lifetime=LIFETIME)
        _write(ca, authority.certificate_pem(), _EVERYBODY_READS)
        _write(key, server.key_pem(), _OWNER_ONLY)
        _write(certificate, server.certificate_pem(), _EVERYBODY_READS)
    return certificate, key


def _is_usable(ca: Path, certificate: Path, key: Path, names: list[str], now: dt.datetime) -> bool:
    try:
        authority, leaf, leaf_key = (path.read_bytes() for path in (ca, certificate, key))
    except FileNotFoundError:
        return False
    if problems(leaf, leaf_key, authority, names, now):
        return False
    return not is_due(x509.load_pem_x509_certificate(leaf), now)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically; it is readable by its owner only until `mode` is set."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
