"""Reads the certificate of `serve` from the Secret, and checks whether API servers accept it. It writes nothing to the cluster.

Until the Secret has a valid certificate and key, the server presents a temporary certificate, which nobody trusts. Liveness
probes succeed, because kubelets do not verify it, and readiness says what is missing.

A ready server becomes unready only when the certificate expires, or when a published caBundle has not verified it for a grace
period. All replicas have the same certificate, so no other replica could replace an unready one. An unreachable API server
changes nothing.
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
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from prometheus_client import CollectorRegistry, Gauge

from certs.check import PEMPair, PublishedBundles, expires_at, issued_by, observe, pem, rejection_reasons
from certs.issue import issue_ca, issue_server
from certs.reconciler import StoredSecret, WebhookConfiguration
from certs.secret import CA, CERTIFICATE, KEY
from policies.times import utc
from webhook.certificates.objects import ChangeSignal, ClusterConfigurations, ClusterSecret, SecretName
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import WEBHOOK_CONFIGURATION, WEBHOOK_CONFIGURATION_KINDS
from webhook.server.tls import CertificateState
from webhook.threads import thread

log = logging.getLogger("gpu_admission.certificates")

PERIOD = 30.0
"""Seconds between reads, if no watch reports a change."""
RETRY = 2.0
"""Seconds between reads while something is wrong. Watches usually cause an earlier read."""
UNTRUSTED_GRACE = dt.timedelta(seconds=30)
"""If the published caBundle does not verify the certificate for this time, the server is unready. The controller needs less."""

LEAF_LABEL, CA_LABEL, CLIENT_CA_LABEL = "leaf", "ca", "client-ca"


def not_after_gauge(registry: CollectorRegistry) -> Gauge:
    """Return the gauge, which both `serve` and `controller` have."""
    return Gauge(
        "gpu_admission_certificate_not_after_timestamp_seconds",
        "Expiry of the leaf that is served, of the CA that issued it, and of those of callers; 0: there is none.",
        ["certificate"],
        registry=registry,
    )


class ClusterRead(NamedTuple):
    """The webhook configurations at the last successful read, for readiness."""

    read_at: dt.datetime
    configurations: Sequence[WebhookConfiguration]
    published: PublishedBundles
    untrusted_since: dt.datetime | None


class SecretCertificate:
    """The certificate in a Secret. Create it before the server, which loads the file. Call `start` after the fork."""

    def __init__(
        self, name: SecretName, *, clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
    ) -> None:
        self.name = name
        self._clock = clock
        self._file = PrivateFile()
        self._file.write(*_temporary_pair(clock()))
        self._pair_in_use: PEMPair | None = None
        self._missing = f"waiting for the Secret {name}"
        self._problem = self._missing
        self._last_read: ClusterRead | None = None
        self._was_ready = False
        self.certificate = self.key = self._file.path

    def start(self, api: ApiClient) -> None:
        changes, stopping = ChangeSignal(api, self.name), threading.Event()
        changes.start(stopping)
        thread("certificate", partial(self._run, api, changes), stopping).start()

    @property
    def state(self) -> CertificateState | None:
        """The state of the served certificate. None while it is the temporary one."""
        if self._pair_in_use is None:
            return None
        return CertificateState(expires_at(self._pair_in_use.certificate), self._problem or None)

    @property
    def ca_not_after(self) -> float:
        """When the authority that issued the certificate expires, in seconds since the epoch. 0 if there is none."""
        served = self._pair_in_use
        for authority in x509.load_pem_x509_certificates(served.authorities) if served else ():
            if served and issued_by(served.certificate, pem([authority]), self._clock()):
                return authority.not_valid_after_utc.timestamp()
        return 0.0

    def unready_reasons(self) -> list[str]:
        """Return the reasons why API servers do not accept the certificate. Empty if the server is ready."""
        served, last_read, now = self._pair_in_use, self._last_read, self._clock()
        if served is None:
            return [self._problem]
        if (end := expires_at(served.certificate)) <= now:
            return [f"the certificate expired at {utc(end)}"]
        if last_read is None:
            return [] if self._was_ready else ["the webhook configurations were not read yet"]
        problems = _trust_problems(served, last_read.configurations, now)
        if not self._was_ready:
            known = {configuration.kind for configuration in last_read.configurations}
            missing = [kind for kind in WEBHOOK_CONFIGURATION_KINDS if kind not in known]
            return problems + [f"there is no {kind} {WEBHOOK_CONFIGURATION}" for kind in missing]
        since = last_read.untrusted_since
        return problems if since is not None and last_read.read_at - since >= UNTRUSTED_GRACE else []

    def refresh(self, configurations: Sequence[WebhookConfiguration], stored: StoredSecret | None) -> bool:
        """Use the webhook configurations and the Secret, read in this order. Return whether both are right."""
        before, now = self._last_read, self._clock()
        bundles = frozenset(bundle for configuration in configurations for bundle in configuration.bundles)
        hosts = tuple(dict.fromkeys(host for configuration in configurations for host in configuration.hosts))
        published = observe(before.published if before else None, bundles, hosts, now)
        if stored is None:
            self._problem = self._missing if self._pair_in_use is None else ""
        else:
            self._problem = self._use_secret(stored.content.data, published, now)
        is_untrusted = self._pair_in_use is not None and bool(
            _trust_problems(self._pair_in_use, configurations, now)
        )
        since = before.untrusted_since if before else None
        self._last_read = ClusterRead(
            now, configurations, published, (since or now) if is_untrusted else None
        )
        self._was_ready = self._was_ready or not self.unready_reasons()
        return not (is_untrusted or self._problem or self.unready_reasons())

    def _run(self, api: ApiClient, changes: ChangeSignal, stopping: threading.Event) -> None:
        secret, configurations = ClusterSecret(api, self.name), ClusterConfigurations(api)
        log.info("loading the certificate from the Secret %s", self.name)
        problem = ""
        while not stopping.is_set():
            pause = RETRY
            try:
                if self.refresh(configurations.read(), secret.read()):
                    pause = PERIOD
                text = "; ".join(self.unready_reasons())
            except errors.ApiError as error:
                text = f"the certificate cannot be read: {error}"
                if self._pair_in_use is None:
                    self._problem = text
            if text != problem:
                log.warning("%s", text) if text else log.info("API servers accept the certificate")
            problem = text
            changes.wait(pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter

    def _use_secret(self, data: Mapping[str, bytes], published: PublishedBundles, now: dt.datetime) -> str:
        """Serve the certificate in the Secret. Return why it is rejected, or "" if it is served."""
        pair = PEMPair(data.get(CERTIFICATE, b""), data.get(KEY, b""), data.get(CA, b""))
        served = self._pair_in_use
        reasons = [] if pair == served else rejection_reasons(pair, served, published, now)
        if reasons:
            problem = f"the Secret {self.name}: {'; '.join(reasons)}"
            if problem != self._problem:
                what_is_served = "keeping the previous certificate" if served else "no certificate yet"
                log.error("%s: %s", what_is_served, problem)
            return problem
        if served is None or (pair.certificate, pair.key) != (served.certificate, served.key):
            self._file.write(pair.certificate, pair.key)
            end = expires_at(pair.certificate)
            log.info("serving the certificate of the Secret %s, valid until %s", self.name, end)
        self._pair_in_use = pair
        return ""


def _trust_problems(
    pair: PEMPair, configurations: Sequence[WebhookConfiguration], now: dt.datetime
) -> list[str]:
    """Return a message for each configuration with a caBundle that does not verify the certificate."""
    return [
        f"the caBundle of the {configuration.kind} {WEBHOOK_CONFIGURATION} does not verify the certificate"
        for configuration in configurations
        if not all(issued_by(pair.certificate, bundle, now) for bundle in set(configuration.bundles))
    ]


def _temporary_pair(now: dt.datetime) -> tuple[bytes, bytes]:
    lifetime = dt.timedelta(days=1)
    name = "gpu-admission, waiting for its Secret"
    authority = issue_ca(common_name=name, now=now, lifetime=lifetime)
    pair = issue_server(authority, names=["waiting.invalid"], now=now, lifetime=lifetime)
    return pair.certificate_pem(), pair.key_pem()


_MEMORY = Path("/dev/shm")  # noqa: S108 - keys should not reach a disk
_OWNER_ONLY = 0o600


class PrivateFile:
    """A certificate with its key in one file, in memory where possible, readable by its owner only.

    It is one file, so that no reader finds the certificate of one pair and the key of another. The process that
    created it removes it at its end. Child processes do not.
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
