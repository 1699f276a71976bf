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

from certs.check import extension, is_ca
from webhook.server.settings import StartupError

log = logging.getLogger("gpu_admission.server")


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
    ca_bundle: the CAs at the time of the handshake.
    """

    names: frozenset[str]
    is_client: bool
    not_after: float
    ca_bundle: bytes | None


def caller_of(client: ssl.SSLSocket) -> Caller | None:
    """Return the caller of a connection after its handshake, None without a readable certificate."""
    try:
        fields: Mapping[str, Any] | None = client.getpeercert()
        certificate = x509.load_der_x509_certificate(client.getpeercert(binary_form=True) or b"")
    except ValueError:
        return None
    if not fields:
        return None
    subject = (pair for relative in fields.get("subject", ()) for pair in relative)
    names = {value for kind, value in subject if kind == "commonName"}
    names |= {value for kind, value in fields.get("subjectAltName", ()) if kind in {"DNS", "URI"}}
    context = client.context
    ca_bundle = context.client_ca if isinstance(context, ServerContext) else None
    usages = extension(certificate, x509.ExtendedKeyUsage)
    is_client = usages is not None and ExtendedKeyUsageOID.CLIENT_AUTH in usages
    return Caller(frozenset(names), is_client, ssl.cert_time_to_seconds(fields["notAfter"]), ca_bundle)


class _ReloadedFiles:
    """Files that are read again when they change. Raises StartupError if they cannot be used at the start.

    While their present content cannot be used, the one before it stays in use. Any thread may read `state`.
    """

    state: CertificateState
    changed_text: str
    kept_text: str

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = _fingerprint(*paths)
        self._load()

    def _load(self) -> None:
        raise NotImplementedError

    def refresh(self, *, must_load: bool = False) -> None:
        """Read the files again if they have changed. The log has each problem once."""
        seen: tuple[object, ...] = ()
        try:
            seen = _fingerprint(*self._paths)
            if must_load or seen != self._seen:
                self._load()
            if seen != self._seen:
                log.info("%s %s, valid until %s", self.changed_text, self._paths[0], self.state.not_after)
        except StartupError as error:
            if seen != self._seen:
                self.state = dataclasses.replace(self.state, last_error=str(error))
                log.error("%s %s: %s", self.kept_text, self.state.not_after, error)  # noqa: TRY400 - no traceback
        self._seen = seen


class ClientCA(_ReloadedFiles):
    """The authorities of callers, in one PEM file. `state` has the end of the last one to expire."""

    changed_text, kept_text = "callers are verified by", "keeping the client CA valid until"
    bundle: bytes
    """The authorities in use, one after the other in DER."""

    def _load(self) -> None:
        (path,) = self._paths
        try:
            authorities = x509.load_pem_x509_certificates(path.read_bytes())
        except OSError as error:
            raise StartupError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise StartupError(f"{path} must hold certificates of authorities in PEM") from error
        if not all(map(is_ca, authorities)):
            raise StartupError(f"{path} must hold certificates of authorities only")
        not_after = max(authority.not_valid_after_utc for authority in authorities)
        if not_after <= dt.datetime.now(dt.UTC):
            raise StartupError(f"{path} expired on {not_after:%Y-%m-%d}")
        self.bundle = b"".join(authority.public_bytes(Encoding.DER) for authority in authorities)
        self.state = CertificateState(not_after, None)


class ServingCertificate(_ReloadedFiles):
    """A pair of PEM files and its TLS context, for one thread. With `client_ca`, it asks callers for a certificate."""

    changed_text, kept_text = "serving a new certificate from", "keeping the certificate valid until"

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self.client_ca = None if client_ca is None else ClientCA(client_ca)
        super().__init__(certificate, key)

    def context(self) -> ServerContext:
        """Context for the next connection, new if the files have changed since the last call."""
        before = self.client_ca and self.client_ca.bundle
        if self.client_ca:
            self.client_ca.refresh()
        self.refresh(must_load=self.client_ca is not None and self.client_ca.bundle != before)
        return self._context

    @property
    def ca_bundle(self) -> bytes | None:
        """Return the authorities that verify the client certificates of new connections."""
        return self._context.client_ca

    def wrap(self, plain: socket.socket) -> ssl.SSLSocket:
        """Put TLS around a connection that does not block; its handshake is still to come."""
        return self.context().wrap_socket(plain, server_side=True, do_handshake_on_connect=False)

    def _load(self) -> None:
        certificate, key = self._paths
        context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])  # all that kube-apiserver offers to webhooks
        try:
            pem = certificate.read_bytes()
            context.load_cert_chain(certificate, key, password=_no_password)
        except ssl.SSLError as error:
            reason = (error.reason or "PEM lib").replace("_", " ").lower()
            raise StartupError(f"{certificate} and {key} do not load as a pair: {reason}") from error
        except OSError as error:
            raise StartupError(f"{error.filename or key}: {error.strerror}") from error
        except ValueError as error:
            raise StartupError(f"{key}: {error}") from error
        if self.client_ca is not None:
            context.client_ca = self.client_ca.bundle
            context.load_verify_locations(cadata=context.client_ca)
            # Not required: the kubelet's probes have none. An intermediate authority can be trusted alone, as by Go.
            context.verify_mode = ssl.CERT_OPTIONAL
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            not_after = x509.load_pem_x509_certificate(pem).not_valid_after_utc
        except ValueError as error:
            raise StartupError(f"{certificate} must begin with a certificate that can be read") from error
        self._context, self.state = context, CertificateState(not_after, None)


def _fingerprint(*paths: Path) -> tuple[object, ...]:
    """Change of any file, seen through symlinks: a write moves the times, a swap the inode."""
    try:
        stats = [path.stat() for path in paths]
    except OSError as error:
        raise StartupError(f"{error.filename}: {error.strerror}") from error
    return tuple((file.st_ino, file.st_mtime_ns, file.st_ctime_ns, file.st_size) for file in stats)


def _no_password() -> str:
    # Without this OpenSSL would ask on the terminal.
    raise ValueError("the key is encrypted; serve needs a plain one")
