"""The certificate that new connections are given, read again whenever its files change.

Works for files that are rewritten, replaced, or swapped behind symlinks as kubelet does with a Secret volume. A pair that
does not load or match changes nothing: the pair in use stays, the reason is logged once and kept in `state`.
"""

import dataclasses
import datetime as dt
import logging
import socket
import ssl
import time
from pathlib import Path

from cryptography import x509

from webhook.server.settings import StartupError

logger = logging.getLogger(__name__)


class CertificateError(StartupError):
    """No usable pair of certificate and key; the message names the file."""


@dataclasses.dataclass(frozen=True, slots=True)
class CertificateState:
    """What is being served.

    `loaded_at` is in seconds since the epoch, `not_after` in UTC. `last_error` says why the files' present content is not
    what is served (None: it is), `failures` counts such contents since the start.
    """

    loaded_at: float
    not_after: dt.datetime
    last_error: str | None
    failures: int


class ServingCertificate:
    """One pair of PEM files and the TLS context made of them.

    Raises CertificateError when the pair does not load at the start; later failures only show in `state`, which any thread
    may read. `context` belongs to one thread.
    """

    state: CertificateState

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self._failures = 0
        self._seen = self._fingerprint()
        self._load()

    def context(self) -> ssl.SSLContext:
        """Context for the next connection, new if the files have changed since the last call."""
        seen: tuple[object, ...] = ()
        try:
            seen = self._fingerprint()
            if seen != self._seen:
                self._load()
                until = self.state.not_after
                logger.info("serving a new certificate from %s, valid until %s", self._certificate, until)
        except CertificateError as error:
            if seen != self._seen:
                self._failures += 1
                self.state = dataclasses.replace(self.state, last_error=str(error), failures=self._failures)
                logger.error("keeping the certificate valid until %s: %s", self.state.not_after, error)  # noqa: TRY400 - no traceback
        self._seen = seen
        return self._context

    def wrap(self, plain: socket.socket) -> ssl.SSLSocket:
        """Put TLS around a connection that does not block; its handshake is still to come."""
        return self.context().wrap_socket(plain, server_side=True, do_handshake_on_connect=False)

    def _fingerprint(self) -> tuple[object, ...]:
        """Change of either file, seen through symlinks: a write moves the times, a swap the inode."""
        try:
            found = [path.stat() for path in (self._certificate, self._key)]
        except OSError as error:
            raise CertificateError(f"{error.filename}: {error.strerror}") from error
        return tuple((file.st_ino, file.st_mtime_ns, file.st_ctime_ns, file.st_size) for file in found)

    def _load(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])  # all that kube-apiserver offers to webhooks
        try:
            pem = self._certificate.read_bytes()
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except ssl.SSLError as error:
            reason = (error.reason or str(error)).replace("_", " ").lower()
            problem = f"{self._certificate} and {self._key} do not load as a pair: {reason}"
            raise CertificateError(problem) from error
        except OSError as error:
            raise CertificateError(f"{error.filename or self._key}: {error.strerror}") from error
        except ValueError as error:
            raise CertificateError(f"{self._key}: {error}") from error
        not_after = x509.load_pem_x509_certificate(pem).not_valid_after_utc
        self._context, self.state = context, CertificateState(time.time(), not_after, None, self._failures)


def _no_password() -> str:
    # Without this OpenSSL would ask on the terminal.
    raise ValueError("the key is encrypted; serve needs a plain one")
