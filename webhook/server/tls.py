"""The certificate of new connections, and the authorities of their callers, read again whenever the files change.

The files may be rewritten, replaced, or swapped behind symlinks, as kubelet does in a Secret volume. If a pair does not load or
match, the pair in use stays, and the reason is logged once and kept in `state`. The same holds for a bundle of authorities.
"""

import dataclasses
import datetime as dt
import logging
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.check import extension, is_authority
from webhook.server.settings import StartupError

logger = logging.getLogger("gpu_admission.server")


@dataclasses.dataclass(frozen=True, slots=True)
class CertificateState:
    """The served certificate: `not_after` in UTC, and why the present content of the files is not served, None if it is."""

    not_after: dt.datetime
    last_error: str | None


class ServerContext(ssl.SSLContext):
    """The context of server connections; client certificates are verified by `client_ca`, if it is set."""

    client_ca: bytes | None = None


class Caller(NamedTuple):
    """A caller with a verified certificate.

    names: the common name and the DNS and URI names. not_after: in seconds since the epoch.
    is_client: the extended key usage has clientAuth; OpenSSL accepts a certificate without any usage, too.
    verified_by: the authorities at the time of the handshake.
    """

    names: frozenset[str]
    is_client: bool
    not_after: float
    verified_by: bytes | None


def caller_of(client: ssl.SSLSocket) -> Caller | None:
    """Return the caller of a connection after its handshake, None without a readable certificate."""
    try:
        found: Mapping[str, Any] | None = client.getpeercert()
        certificate = x509.load_der_x509_certificate(client.getpeercert(binary_form=True) or b"")
    except ValueError:
        return None
    if not found:
        return None
    subject = (pair for relative in found.get("subject", ()) for pair in relative)
    names = {value for kind, value in subject if kind == "commonName"}
    names |= {value for kind, value in found.get("subjectAltName", ()) if kind in {"DNS", "URI"}}
    context = client.context
    verified_by = context.client_ca if isinstance(context, ServerContext) else None
    usages = extension(certificate, x509.ExtendedKeyUsage)
    is_client = usages is not None and ExtendedKeyUsageOID.CLIENT_AUTH in usages
    return Caller(frozenset(names), is_client, ssl.cert_time_to_seconds(found["notAfter"]), verified_by)


class ClientCA:
    """The authorities of callers, in one PEM file. Raises StartupError if the file cannot be used at the start.

    bundle: the authorities in use, one after the other in DER.
    last_error: why the present content of the file is not in use, None if it is.
    """

    bundle: bytes
    not_after: dt.datetime
    """The end of the last authority to expire."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last_error: str | None = None
        self._seen = _fingerprint(path)
        self._load()

    def refresh(self) -> bool:
        """Read the file again if it has changed; return whether other authorities are in use now."""
        seen: tuple[object, ...] = ()
        before = self.bundle
        try:
            seen = _fingerprint(self._path)
            if seen != self._seen:
                self._load()
                logger.info("callers are verified by %s, valid until %s", self._path, self.not_after)
        except StartupError as error:
            if seen != self._seen:
                self.last_error = str(error)
                logger.error("keeping the client CA valid until %s: %s", self.not_after, error)  # noqa: TRY400 - no traceback
        self._seen = seen
        return self.bundle != before

    def _load(self) -> None:
        try:
            authorities = x509.load_pem_x509_certificates(self._path.read_bytes())
        except OSError as error:
            raise StartupError(f"{self._path}: {error.strerror}") from error
        except ValueError as error:
            raise StartupError(f"{self._path} must hold certificates of authorities in PEM") from error
        if not all(map(is_authority, authorities)):
            raise StartupError(f"{self._path} must hold certificates of authorities only")
        not_after = max(each.not_valid_after_utc for each in authorities)
        if not_after <= dt.datetime.now(dt.UTC):
            raise StartupError(f"{self._path} expired on {not_after:%Y-%m-%d}")
        self.bundle = b"".join(each.public_bytes(Encoding.DER) for each in authorities)
        self.not_after, self.last_error = not_after, None


class ServingCertificate:
    """A pair of PEM files and its TLS context. With `client_ca`, the context asks callers for a certificate.

    Raises StartupError if the files do not load at the start. Later failures only show in `state` and `client_ca.last_error`,
    which any thread may read. `context` belongs to one thread.
    """

    state: CertificateState

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._certificate, self._key = certificate, key
        self.client_ca = None if client_ca is None else ClientCA(client_ca)
        self._seen = _fingerprint(certificate, key)
        self._load()

    def context(self) -> ServerContext:
        """Context for the next connection, new if the files have changed since the last call."""
        seen: tuple[object, ...] = ()
        try:
            renewed = self.client_ca is not None and self.client_ca.refresh()
            seen = _fingerprint(self._certificate, self._key)
            if renewed or seen != self._seen:
                self._load()
            if seen != self._seen:
                until = self.state.not_after
                logger.info("serving a new certificate from %s, valid until %s", self._certificate, until)
        except StartupError as error:
            if seen != self._seen:
                self.state = dataclasses.replace(self.state, last_error=str(error))
                logger.error("keeping the certificate valid until %s: %s", self.state.not_after, error)  # noqa: TRY400 - no traceback
        self._seen = seen
        return self._context

    @property
    def verified_by(self) -> bytes | None:
        """Return the authorities that verify the client certificates of new connections."""
        return self._context.client_ca

    def wrap(self, plain: socket.socket) -> ssl.SSLSocket:
        """Put TLS around a connection that does not block; its handshake is still to come."""
        return self.context().wrap_socket(plain, server_side=True, do_handshake_on_connect=False)

    def _load(self) -> None:
        context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])  # all that kube-apiserver offers to webhooks
        try:
            pem = self._certificate.read_bytes()
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except ssl.SSLError as error:
            reason = (error.reason or str(error)).replace("_", " ").lower()
            problem = f"{self._certificate} and {self._key} do not load as a pair: {reason}"
            raise StartupError(problem) from error
        except OSError as error:
            raise StartupError(f"{error.filename or self._key}: {error.strerror}") from error
        except ValueError as error:
            raise StartupError(f"{self._key}: {error}") from error
        if self.client_ca is not None:
            context.client_ca = self.client_ca.bundle
            context.load_verify_locations(cadata=context.client_ca)
            # Not required: the kubelet's probes have none. An intermediate authority can be trusted alone, as by Go.
            context.verify_mode = ssl.CERT_OPTIONAL
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        not_after = x509.load_pem_x509_certificate(pem).not_valid_after_utc
        self._context, self.state = context, CertificateState(not_after, None)


def _fingerprint(*paths: Path) -> tuple[object, ...]:
    """Change of any file, seen through symlinks: a write moves the times, a swap the inode."""
    try:
        found = [path.stat() for path in paths]
    except OSError as error:
        raise StartupError(f"{error.filename}: {error.strerror}") from error
    return tuple((file.st_ino, file.st_mtime_ns, file.st_ctime_ns, file.st_size) for file in found)


def _no_password() -> str:
    # Without this OpenSSL would ask on the terminal.
    raise ValueError("the key is encrypted; serve needs a plain one")
