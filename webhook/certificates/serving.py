"""The certificate of `serve` from the Secret, and whether API servers accept it. Nothing is written to the cluster.

Until the Secret holds a valid pair, the server presents a temporary certificate, which nobody trusts: liveness probes ignore it
and succeed, and readiness says what is missing.

A ready server becomes unready only when the certificate expires, or when a published caBundle does not verify it for a grace
period: all replicas have the same certificate, so that leaving the Service would not help. An unreachable API server changes
nothing.
"""

import atexit
import datetime as dt
import logging
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from prometheus_client import CollectorRegistry, Gauge

from certs.acceptance import PEMPair, PublishedBundles, observe, rejection_reasons
from certs.check import expires_at, issued_by
from certs.issue import issue_authority, issue_server
from certs.reconciler import StoredSecret, WebhookConfiguration
from certs.rotation import pem
from certs.secret import CA, CERTIFICATE, KEY
from webhook.certificates.objects import ChangeSignal, ClusterConfigurations, ClusterSecret, SecretName
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import WEBHOOK_CONFIGURATION, WEBHOOK_CONFIGURATION_KINDS
from webhook.server.tls import CertificateState

log = logging.getLogger("gpu_admission.certificates")

PERIOD = 30.0
"""Seconds between reads without a change."""
RETRY = 2.0
"""Seconds between reads while something is wrong; the watches usually are faster."""
UNTRUSTED_GRACE = dt.timedelta(seconds=30)
"""How long a published caBundle may not verify our certificate before the server is unready: the controller is faster."""

LEAF_LABEL, AUTHORITY_LABEL, CLIENT_CA_LABEL = "leaf", "ca", "client-ca"


def not_after_gauge(registry: CollectorRegistry) -> Gauge:
    """Return the gauge that serve and controller share."""
    return Gauge(
        "gpu_admission_certificate_not_after_timestamp_seconds",
        "Expiry of the leaf that is served, of the authority that issued it, and of those of callers; 0: there is none.",
        ["certificate"],
        registry=registry,
    )


class ClusterView(NamedTuple):
    """The result of the last successful read, for readiness."""

    read_at: dt.datetime
    seen: Sequence[WebhookConfiguration]
    published: PublishedBundles
    untrusted_since: dt.datetime | None


class SecretCertificate:
    """Make it before the server, which loads its files. Call `start` in the serving process: threads do not survive a fork."""

    def __init__(
        self, name: SecretName, *, clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
    ) -> None:
        self.name = name
        self._clock = clock
        self._file = PrivateFile()
        self._file.write(*_temporary(clock()))
        self._held: PEMPair | None = None
        self._problem = f"waiting for the Secret {name}"
        self._view: ClusterView | None = None
        self._was_ready = False
        self.certificate = self.key = self._file.path

    def start(self, api: ApiClient) -> None:
        changes = ChangeSignal(api, self.name)
        changes.start(threading.Event())
        threading.Thread(target=self._run, args=(api, changes), name="certificate", daemon=True).start()

    @property
    def state(self) -> CertificateState | None:
        """Describe the served certificate; None while it is the temporary one."""
        if self._held is None:
            return None
        return CertificateState(expires_at(self._held.certificate), self._problem or None)

    @property
    def authority_not_after(self) -> float:
        """When the issuing authority expires, in seconds since the epoch; 0 without one."""
        held = self._held
        for authority in x509.load_pem_x509_certificates(held.authorities) if held else ():
            if held and issued_by(held.certificate, pem([authority]), self._clock()):
                return authority.not_valid_after_utc.timestamp()
        return 0.0

    def unready(self) -> list[str]:
        """Return why the server is not ready: API servers do not accept the certificate."""
        held, view, now = self._held, self._view, self._clock()
        if held is None:
            return [self._problem]
        if (end := expires_at(held.certificate)) <= now:
            return [f"the certificate expired at {end:%Y-%m-%d %H:%M} UTC"]
        if view is None:
            return [] if self._was_ready else ["the webhook configurations were not read yet"]
        problems = _untrusted(held, view.seen, now)
        if not self._was_ready:
            missing = [
                kind for kind in WEBHOOK_CONFIGURATION_KINDS if kind not in {each.kind for each in view.seen}
            ]
            return problems + [f"there is no {kind} {WEBHOOK_CONFIGURATION}" for kind in missing]
        since = view.untrusted_since
        return problems if since is not None and view.read_at - since >= UNTRUSTED_GRACE else []

    def refresh(self, seen: Sequence[WebhookConfiguration], stored: StoredSecret | None) -> bool:
        """Take the configurations and the Secret, read in this order; return whether nothing is wrong."""
        before, now = self._view, self._clock()
        bundles = frozenset(bundle for each in seen for bundle in each.bundles)
        hosts = tuple(dict.fromkeys(host for each in seen for host in each.hosts))
        published = observe(before.published if before else None, bundles, hosts, now)
        if stored is None:
            self._problem = f"waiting for the Secret {self.name}" if self._held is None else ""
        else:
            self._problem = self._offer(stored.content.data, published, now)
        untrusted = self._held is not None and bool(_untrusted(self._held, seen, now))
        since = before.untrusted_since if before else None
        self._view = ClusterView(now, seen, published, (since or now) if untrusted else None)
        self._was_ready = self._was_ready or not self.unready()
        return not (untrusted or self._problem or self.unready())

    def _run(self, api: ApiClient, changes: ChangeSignal) -> None:
        secret, configurations = ClusterSecret(api, self.name), ClusterConfigurations(api)
        log.info("loading the certificate from the Secret %s", self.name)
        problem = ""
        while True:
            pause = RETRY
            try:
                if self.refresh(configurations.read(), secret.read()):
                    pause = PERIOD
                text = "; ".join(self.unready())
            except errors.ApiError as error:
                text = f"the certificate cannot be read: {error}"
                if self._held is None:
                    self._problem = text
            except Exception as error:  # a bug must not end the loop: the certificate would expire
                log.exception("the certificate cannot be read")
                text = type(error).__name__
            if text != problem:
                log.warning("%s", text) if text else log.info("API servers accept the certificate")
            problem = text
            changes.wait(pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter

    def _offer(self, data: Mapping[str, bytes], published: PublishedBundles, now: dt.datetime) -> str:
        """Serve the pair in the Secret; return why it is refused, empty if it is served."""
        pair, held = PEMPair(data.get(CERTIFICATE, b""), data.get(KEY, b""), data.get(CA, b"")), self._held
        found = [] if pair == held else rejection_reasons(pair, held, published, now)
        if found:
            problem = f"the Secret {self.name}: {'; '.join(found)}"
            if problem != self._problem:
                kept = "keeping the previous certificate" if held else "no certificate yet"
                log.error("%s: %s", kept, problem)
            return problem
        if held is None or (pair.certificate, pair.key) != (held.certificate, held.key):
            self._file.write(pair.certificate, pair.key)
            end = expires_at(pair.certificate)
            log.info("serving the certificate of the Secret %s, valid until %s", self.name, end)
        self._held = pair
        return ""


def _untrusted(pair: PEMPair, seen: Sequence[WebhookConfiguration], now: dt.datetime) -> list[str]:
    """Return a message for each configuration with a caBundle that does not verify the certificate."""
    return [
        f"the caBundle of the {each.kind} {WEBHOOK_CONFIGURATION} does not verify the certificate"
        for each in seen
        if not all(issued_by(pair.certificate, bundle, now) for bundle in set(each.bundles))
    ]


def _temporary(now: dt.datetime) -> tuple[bytes, bytes]:
    lifetime = dt.timedelta(days=1)
    name = "gpu-admission, waiting for its Secret"
    authority = issue_authority(common_name=name, now=now, lifetime=lifetime)
    pair = issue_server(authority, names=["waiting.invalid"], now=now, lifetime=lifetime)
    return pair.certificate_pem(), pair.key_pem()


_MEMORY = Path("/dev/shm")  # noqa: S108 - keys should not reach a disk
_OWNER_ONLY = 0o600


class PrivateFile:
    """A certificate with its key in one file, in memory where possible, readable by its owner only.

    It is one file, so that no reader finds a mixture of two pairs. It is removed when the process that made it ends, not its
    children.
    """

    def __init__(self) -> None:
        base = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
        self.path = Path(tempfile.mkdtemp(prefix="gpu-admission-", dir=base)) / "tls.pem"  # mode 0700
        atexit.register(self._remove, os.getpid())

    def write(self, certificate: bytes, key: bytes) -> None:
        new = self.path.with_suffix(".new")
        new.touch(_OWNER_ONLY)
        new.write_bytes(b"%b\n%b" % (certificate, key))
        new.rename(self.path)

    def _remove(self, owner: int) -> None:
        if os.getpid() == owner:
            shutil.rmtree(self.path.parent, ignore_errors=True)
